"""Text that a shell, Slurm or a program could take for more than text: it is refused, or it comes
out of the executed script as exactly what went in.
"""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.conftest import load_sound
from tests.hostile import FOR_A_SHELL, HOSTILE, NAMES, canaries
from tests.launch import scripts
from workflow_lib.config import Platform
from workflow_lib.launch import job_script, run_place
from workflow_lib.launch.job_script import RenderError
from workflow_lib.study import ConfigError


@pytest.fixture
def recorders(tmp_path: Path) -> scripts.Recorders:
    return scripts.Recorders(tmp_path / "commands")


def attempt(directory: Path, base: str, **changes: object) -> Platform | None:
    """The changed platform, or None where it is refused."""
    try:
        return scripts.platform(directory, base, **changes)
    except ConfigError:
        return None


def test_the_corpus_is_large_and_without_repeats():
    assert len(HOSTILE) == len(set(HOSTILE)) >= 50


@pytest.mark.parametrize("key", ["account", "partition", "qos", "reservation", "gpu_type"])
def test_names_that_slurm_reads_are_refused(key, tmp_path):
    for value in HOSTILE:
        with pytest.raises(ConfigError, match=key):
            scripts.platform(tmp_path, "h200", **{key: value})
    # The script's own check, should a value come by another way.
    for value in set(HOSTILE) - {"=", "a=b", "-", "-rf", "--help", "--output=canary"}:
        with pytest.raises(RenderError):
            job_script.word(value)


def test_nodes_to_exclude_and_further_options_of_sbatch_are_refused(tmp_path):
    for value in HOSTILE:
        for changes in (
            {"exclude_nodes": ["node[1-3]", value]},
            {"sbatch_options": {"comment": value}},
            {"sbatch_options": {value: "word"}},
        ):
            with pytest.raises(ConfigError, match=next(iter(changes))):
                scripts.platform(tmp_path, "h200", **changes)
    # The script's own check.
    for value in set(HOSTILE) - {"-", "-rf", "--help", ""}:
        with pytest.raises(RenderError):
            job_script.hosts([value])


def test_a_constraint_is_refused_or_is_one_word_of_its_line(tmp_path):
    cell = scripts.planned("smoke-h200").cell
    taken = 0
    for value in HOSTILE:
        site = attempt(tmp_path, "h200", constraint=value)
        if site is None:
            continue
        places = scripts.write(cell, site, tmp_path, tmp_path / "results")
        script = (places.run_directory / "job.sh").read_text()
        assert f"\n#SBATCH --constraint={value}\n" in script
        assert not set(value) & set(" \t\n\"'$`;<>\\#")
        taken += 1
    # Operators that constraints have: "*", "(subshell)", "&anchor", and hyphens, behind a "=".
    assert taken == 6


def test_names_of_variables_are_refused(tmp_path):
    for value in [*HOSTILE, "1A", "A-B", "A.B", "A B=1; touch canary"]:
        with pytest.raises(ConfigError):
            scripts.platform(tmp_path, "local", environment={value: "1"})
        with pytest.raises(RenderError):
            job_script.variable(value)


def test_names_of_configuration_files_are_refused(study_without_sweeps):
    source = study_without_sweeps / "models" / "gpt3-tiny.yaml"
    for value in NAMES:
        path = source.with_name(f"{value}.yaml")
        shutil.copy(source, path)
        with pytest.raises(ConfigError, match="cannot be a name"):
            load_sound(study_without_sweeps)
        path.unlink()


def test_values_of_variables_reach_the_job_unchanged(tmp_path, recorders):
    values = {f"VALUE_{i}": value for i, value in enumerate(HOSTILE)}
    refused = {
        name
        for name in values
        if attempt(tmp_path, "local", environment={name: values[name]}) is None
    }
    assert {values[name] for name in refused} == {
        *("null\0byte", "lone \ud800 surrogate"),
        *FOR_A_SHELL,
    }
    values = {name: value for name, value in values.items() if name not in refused}

    recorders.add("recorder")
    site = scripts.platform(tmp_path, "local", environment=values, python="recorder")
    places = scripts.write(
        scripts.with_telemetry(scripts.planned("demo").cell), site, tmp_path, tmp_path / "results"
    )
    done = recorders.run(places.run_directory / "job.sh")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    calls = recorders.calls()
    assert len(calls) == 5  # begin, telemetry, wait, training, end
    for call in calls:
        assert {name: call.environment[name] for name in values} == values
    assert canaries(tmp_path) == []


def test_paths_and_the_interpreter_reach_the_job_unchanged(tmp_path, recorders):
    """The repository, the results and the interpreter all bear the hostile name."""
    cell = scripts.with_telemetry(scripts.planned("demo").cell)
    recorder = recorders.add("recorder")
    ran = 0
    for number, value in enumerate(NAMES):
        base = tmp_path / f"case{number}"
        root, where = base / value, base / value / f"r{value}"
        root.mkdir(parents=True)
        site = attempt(base, "local", python=f"./{value}")
        if site is None:
            assert not value.isprintable() or value in FOR_A_SHELL, value
            site = scripts.platform(base, "local", python="./recorder")
        shutil.copy(recorder, root / site.python)
        places = scripts.write(cell, site, root, where)
        done = recorders.run(places.run_directory / "job.sh")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), value

        calls = {tuple(call.argv[1:]): call for call in recorders.calls()}
        run, job = str(places.run_directory), None
        launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
        rank = ("-m", "workflow_lib.launch.job.rank", run)
        module = (*rank, "-m", "workflow_lib.trainers.native", f"{run}/cell.json")
        ranks = (*module, "--tokens", str(places.tokens))
        # The launcher makes one dollar sign of two.
        expected = (*launcher, *(word.replace("$", "$$") for word in ranks))
        assert expected in calls, value
        assert ("-m", "workflow_lib.telemetry", f"{run}/cell.json") in calls
        for arguments, call in calls.items():
            assert call.argv[0] == str(root / site.python)
            assert call.environment["PYTHONPATH"] == str(places.code.archive)
            if arguments[1] == "workflow_lib.launch.job.node":
                assert arguments[3] == run
                job = arguments[arguments.index("--job") + 1] if "--job" in arguments else job
        assert job is not None
        assert job.isdigit()
        assert len(calls) == 5, "\n".join(map(" ".join, calls))
        ran += 1
    assert ran == len(NAMES)
    assert canaries(tmp_path) == []


def test_an_interpreter_that_is_looked_up_has_a_plain_name(tmp_path):
    for value in HOSTILE:
        site = attempt(tmp_path, "local", python=value)
        if site is not None and "/" not in value:
            with pytest.raises(RenderError, match="interpreter"):
                scripts.write(scripts.planned("demo").cell, site, tmp_path, tmp_path / "results")


def slurm_script(directory: Path, root: Path, site: Platform) -> Path:
    cell = scripts.with_telemetry(scripts.planned("smoke-h200").cell)
    return scripts.write(cell, site, root, directory / "results").run_directory / "job.sh"


def test_modules_reach_the_module_command_unchanged(tmp_path, recorders):
    for command in ("module", "srun", "python3"):
        recorders.add(command)
    loaded = []
    for value in HOSTILE:
        site = attempt(tmp_path, "h200", python="python3", modules=[value])
        if site is None:
            assert not value.isprintable() or value == ""
        elif value.startswith("-"):
            with pytest.raises(RenderError, match="hyphen"):
                slurm_script(tmp_path, tmp_path, site)
        else:
            loaded.append(value)
    assert len(loaded) > 50
    script = slurm_script(
        tmp_path, tmp_path, scripts.platform(tmp_path, "h200", python="python3", modules=loaded)
    )
    done = recorders.run(script, SLURM_JOB_ID="7")
    assert (done.returncode, done.stderr) == (0, "")
    calls = [call.argv for call in recorders.calls()]
    modules = [argv[1:] for argv in calls if Path(argv[0]).name == "module"]
    assert sorted(modules) == sorted(["load", value] for value in loaded)
    assert sum(Path(argv[0]).name == "srun" for argv in calls) == 2
    assert canaries(tmp_path) == []


def test_apptainer_gets_image_and_mounts_unchanged(tmp_path, recorders):
    for command in ("apptainer", "srun", "python3"):
        recorders.add(command)
    mounts, images = [], []
    for value in HOSTILE:
        container = {"runtime": "apptainer", "image": value, "mounts": [f"/{value}"]}
        site = attempt(tmp_path, "h200", python="python3", container=container)
        if site is None:
            assert not value.isprintable() or value == "" or value in FOR_A_SHELL
            continue
        (images if not value.startswith("-") else []).append(value)
        try:
            job_script.mount(f"/{value}")
            mounts.append(f"/{value}")
        except RenderError:
            assert set(value) & set(':,"\\')
    assert len(mounts) > 40
    root = tmp_path / "$(touch canary) repository"
    root.mkdir()
    for image in images:
        container = {"runtime": "apptainer", "image": image, "mounts": mounts}
        site = scripts.platform(tmp_path, "h200", python="python3", container=container)
        script = slurm_script(root, root, site)
        done = recorders.run(script, SLURM_JOB_ID="7")
        assert (done.returncode, done.stderr) == (0, "")
        binds = [word for mount in [str(root), *mounts] for word in ("--bind", mount)]
        code = f"PYTHONPATH={run_place.code_of(script)}"
        own = ["CUDA_DEVICE_ORDER=PCI_BUS_ID", code, "PYTHONSAFEPATH=1", "NCCL_DEBUG=WARN"]
        inside = ["exec", "--nv", *binds, image, "env", *own, "python3", "-m"]
        calls = [call.argv for call in recorders.calls()]
        # What watches the run may be ended while it is recorded.
        apptainer = [
            argv[1:]
            for argv in calls
            if Path(argv[0]).name == "apptainer"
            and set(argv) & {"begin", "wait-for-telemetry", "end"}
        ]
        assert len(apptainer) == 3, "\n".join(map(" ".join, apptainer))  # begin, wait, end
        assert all(argv[: len(inside)] == inside for argv in apptainer)
        steps = [argv for argv in calls if Path(argv[0]).name == "srun"]
        assert len(steps) == 2  # telemetry, training
        for argv in steps:
            at = argv.index("apptainer")
            assert argv[at + 1 : at + 1 + len(inside)] == inside
            assert all(word.startswith("--") for word in argv[1:at])
        module = [argv[-2].rpartition(".")[2] for argv in steps]
        assert sorted(module) == ["native", "telemetry"]
    assert canaries(tmp_path) == []


def test_pyxis_gets_image_and_mounts_unchanged(tmp_path, recorders):
    for command in ("srun", "python3"):
        recorders.add(command)
    mounts = ["/with space", "/it's", "/$(touch canary)", "/*", "/日本語", "/a;b"]
    for image in [v for v in HOSTILE if v.isprintable() and v and v not in FOR_A_SHELL][::4]:
        container = {"runtime": "pyxis", "image": image, "mounts": mounts}
        site = scripts.platform(tmp_path, "h200", python="python3", container=container)
        done = recorders.run(slurm_script(tmp_path, tmp_path, site), SLURM_JOB_ID="7")
        assert (done.returncode, done.stderr) == (0, "")
        steps = [c.argv for c in recorders.calls() if Path(c.argv[0]).name == "srun"]
        assert len(steps) == 2
        for argv in steps:
            own = argv[1 : argv.index("python3")]
            assert f"--container-image={image}" in own
            listed = ",".join(f"{path}:{path}" for path in [str(tmp_path), *mounts])
            assert f"--container-mounts={listed}" in own
            assert all(word.startswith("--") for word in own)
    assert canaries(tmp_path) == []


def test_no_value_adds_a_line_that_sbatch_reads(tmp_path):
    plain = slurm_script(tmp_path, tmp_path, scripts.study().platforms["h200"]).read_text()
    values = [
        value for value in HOSTILE if not set(value) & {"\0", "\ud800"} and value not in FOR_A_SHELL
    ]
    site = scripts.platform(
        tmp_path, "h200", environment={f"VALUE_{i}": value for i, value in enumerate(values)}
    )
    root = tmp_path / "a\n#SBATCH --partition=canary\n"
    root.mkdir()
    hostile = slurm_script(root, root, site).read_text()

    def directives(script: str) -> list[str]:
        """sbatch reads no further than the first command."""
        lines = script.splitlines()
        first = next(i for i, line in enumerate(lines) if line and not line.startswith("#"))
        return [line for line in lines[:first] if line.startswith("#SBATCH")]

    assert directives(hostile) == directives(plain)
    assert len(directives(plain)) >= 10


def test_a_cell_cannot_be_named_so_that_it_leaves_its_comment():
    planned = scripts.planned("demo")
    places = job_script.Places(Path("/root"), Path("/root/run"), None, scripts.CODE)
    for value in HOSTILE:
        cell = dataclasses.replace(planned.cell, id=f"local/{value} /x_1")
        with pytest.raises(RenderError):
            job_script.job_script(cell, scripts.study().platforms["local"], places, 15)
