"""Job scripts, compared whole with those that were read and found good."""

from __future__ import annotations

import dataclasses
import difflib
import os
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.launch import scripts
from tests.programs import well
from workflow_lib import cells, results
from workflow_lib.launch import __main__ as command
from workflow_lib.launch import job_script
from workflow_lib.launch.rendering import render_run

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path("/srv/triptych")
WRITE = "TRIPTYCH_WRITE_GOLDENS"

_PLATFORMS = {
    "h200": ("parallelism-h200", "gpt3-175b", "tp2-pp16-dp1"),
    "h100": ("parallelism-h100", "llama3-70b", "tp8-pp4-dp2"),
    "mi250": ("mi250-counterpart", None, None),
    "local": ("demo", None, None),
}
_REQUESTS = {
    "account": "research",
    "qos": "long",
    "constraint": "[rack1|rack2]",
    "reservation": "study",
    "exclude_nodes": ["gpu7", "gpu[12-13,20]", "rack[1-2]-gpu[01-16]"],
    "requeue": False,
    "sbatch_options": {"wckey": "power", "switches": "1@24:00:00", "nice": 100, "contiguous": True},
    "gpu_request": "gres",
    "exclusive": False,
    "modules": ["cuda/12.8", "openmpi/5.0"],
    "environment": {"NCCL_DEBUG": "WARN", "NCCL_IB_HCA": "=mlx5_0:1", "GREETING": "it's $(HOME)"},
}
_VARIANTS = {
    "h200-apptainer": _REQUESTS
    | {
        "python": "python3",
        "container": {
            "runtime": "apptainer",
            "image": "/images/training 1.sif",
            "mounts": ["/scratch", "/data sets"],
        },
    },
    "h200-limits": {"gpu_settings": "allowed"},
    "h200-pyxis": {
        "python": "python3",
        "container": {
            "runtime": "pyxis",
            "image": "nvcr.io#nvidia/pytorch:26.01-py3",
            "mounts": ["/scratch", "/data sets"],
        },
    },
}
#: telemetry options of a golden's cell that are not its sweep's
_LIMITS = {"power_limits_w": (500,) * 8, "clock_limits_mhz": (1500,) * 8}
_TELEMETRY = {"h200-apptainer": {"cool_down_to_c": 40.0, "cool_down_limit_s": 600.0}}


def rendered(name: str, directory: Path) -> str:
    """The script of a golden."""
    sweep, model, degrees = _PLATFORMS[name.partition("-")[0]]
    planned = scripts.planned(sweep, model, degrees)
    site = scripts.study().platforms[planned.cell.hardware.platform]
    if name in _VARIANTS:
        site = scripts.platform(directory, name.partition("-")[0], **_VARIANTS[name])
    telemetry = dataclasses.replace(planned.cell.telemetry, **_TELEMETRY.get(name, {}))
    cell = dataclasses.replace(planned.cell, telemetry=telemetry)
    if name == "h200-limits":
        training = dataclasses.replace(cell.training, **_LIMITS)
        cell = dataclasses.replace(cell, training=training)
    places = job_script.Places(
        root=ROOT,
        run_directory=results.run_directory(ROOT / "results", planned.cell.id, 1),
        tokens=results.tokens(ROOT / "results", planned.cell.data),
        code=scripts.CODE,
    )
    assert planned.estimate is not None
    return job_script.job_script(cell, site, places, planned.estimate.time_limit_min)


@pytest.mark.parametrize("name", [*_PLATFORMS, *_VARIANTS])
def test_the_script_is_the_golden_one(name, tmp_path):
    script = rendered(name, tmp_path)
    golden = GOLDEN / f"{name}.sh"
    if os.environ.get(WRITE):
        golden.write_text(script, encoding="utf-8", newline="")
    expected = golden.read_text(encoding="utf-8") if golden.exists() else ""
    difference = "\n".join(
        difflib.unified_diff(
            expected.splitlines(), script.splitlines(), golden.name, "rendered", "", "", 3, ""
        )
    )
    assert script == expected, (
        f"{golden.name} differs. If that is meant, read the difference, then write them anew: "
        f"{WRITE}=1 python -m pytest tests/launch/test_render.py\n{difference}"
    )


@pytest.mark.parametrize(
    "checker", [["bash", "-n"], [str(Path(sys.executable).parent / "shellcheck")]]
)
def test_scripts_are_sound_shell(checker, tmp_path):
    paths = []
    for name in [*_PLATFORMS, *_VARIANTS]:
        paths.append(tmp_path / f"{name}.sh")
        paths[-1].write_text(rendered(name, tmp_path), encoding="utf-8")
    # bash takes one script only.
    for batch in [[path] for path in paths] if checker[0] == "bash" else [paths]:
        well(programs.run([*checker, *batch]))


def test_a_written_script_is_sealed_and_executable(tmp_path):
    planned = scripts.planned("demo")
    places = scripts.write(
        planned.cell, scripts.study().platforms["local"], tmp_path, tmp_path / "r"
    )
    script = places.run_directory / "job.sh"
    assert job_script.is_intact(script)
    assert os.access(script, os.X_OK)
    assert (places.run_directory / "cell.json").exists()


def test_a_profiled_run_is_told_its_steps_and_waits_for_nothing():
    cell = scripts.planned("demo").cell
    telemetry = dataclasses.replace(cell.telemetry, cool_down_to_c=40.0, cool_down_limit_s=600.0)
    cell = dataclasses.replace(cell, telemetry=telemetry)
    places = job_script.Places(ROOT, Path("/results/run0"), None, scripts.CODE)
    site = scripts.study().platforms["local"]
    script = job_script.job_script(cell, site, places, 15, profiled_steps=3)
    assert '    -m workflow_lib.trainers.native "$cell" --profile 3\n' in script
    # The checksum is another one, too.
    measured = job_script.job_script(cell, site, places, 15).splitlines()[2:]
    gone = [line for line in measured if line not in script.splitlines()]
    cool_down = 'start helper "${here[@]}" -m workflow_lib.launch.job.node cool-down'
    assert gone == [
        '    -m workflow_lib.trainers.native "$cell"',
        "stage=cool_down",
        f'{cool_down} "$run_directory" \\',
        "stage=baseline",
        f"start helper sleep {cell.telemetry.idle_baseline_s}",
        'wait "$helper"',
    ]


def test_a_container_sees_results_that_lie_outside_the_repository(tmp_path):
    planned = scripts.planned("demo")
    site = scripts.platform(
        tmp_path, "local", container={"runtime": "apptainer", "image": "/i.sif", "mounts": []}
    )
    places = job_script.Places(
        *(Path("/repository"), Path("/results/run1"), Path("/results/data/tokens.json")),
        job_script.Code(Path("/results/code/0.zip"), None, None),
    )
    script = job_script.job_script(planned.cell, site, places, 15)
    for path in ("/repository", "/results/run1", "/results/data", "/results/code"):
        assert f"--bind {path}\n" in script


@pytest.mark.parametrize(
    ("source", "begins"),
    [
        ("nvidia", "apptainer exec --nv\n"),
        ("amd", "apptainer exec --rocm\n"),
        ("simulated", "apptainer exec\n"),
        ("auto", 'apptainer exec "${gpus_inside[@]}"\n'),
    ],
)
def test_a_container_gets_the_gpus_that_its_telemetry_reads(source, begins, tmp_path):
    container = {"runtime": "apptainer", "image": "/i.sif", "mounts": []}
    site = scripts.platform(tmp_path, "local", container=container)
    cell = scripts.with_telemetry(scripts.planned("demo").cell, source=source)
    places = job_script.Places(Path("/repository"), Path("/results/run1"), None, scripts.CODE)
    script = job_script.job_script(cell, site, places, 15)
    assert begins in script
    assert ("gpus_inside=()" in script) == (source == "auto")


@pytest.mark.parametrize(
    "name", ["root", "stage", "PYTHONUNBUFFERED", "UID", "BASH_ENV", "CUDA_DEVICE_ORDER"]
)
def test_a_variable_that_the_script_sets_itself_is_refused(name, tmp_path):
    site = scripts.platform(tmp_path, "local", environment={name: "1"})
    with pytest.raises(job_script.RenderError, match=name):
        scripts.write(scripts.planned("demo").cell, site, tmp_path, tmp_path / "results")


@pytest.mark.parametrize("path", ["relative", "/a:b", "/a,b", '/a"b', "/a\\b"])
def test_a_mount_that_a_container_would_misread_is_refused(path, tmp_path):
    container = {"runtime": "pyxis", "image": "i", "mounts": [path]}
    site = scripts.platform(tmp_path, "h200", container=container)
    with pytest.raises(job_script.RenderError, match="mounted"):
        scripts.write(scripts.planned("smoke-h200").cell, site, ROOT, tmp_path / "results")


@pytest.mark.parametrize(
    ("run", "archive", "word"),
    [("/run1", "/a:b/0.zip", "colon"), ("/results\udc80/run1", "/0.zip", "UTF-8")],
)
def test_code_below_a_colon_and_a_path_that_is_no_text_are_refused(run, archive, word):
    code = job_script.Code(Path(archive), None, None)
    places = job_script.Places(Path("/r"), Path(run), None, code)
    site = scripts.study().platforms["local"]
    with pytest.raises(job_script.RenderError, match=word):
        job_script.job_script(scripts.planned("demo").cell, site, places, 15)


@pytest.mark.parametrize("is_profiled", [False, True])
def test_only_a_planned_run_is_rendered(
    study_directory, tmp_path, capsys, monkeypatch, is_profiled
):
    """A profiled one where its sweep asks for it."""
    every = cells.expand_study(scripts.study())["demo"].cells
    infeasible = next(each.cell.id for each in every if not each.feasible)
    cell = scripts.planned("smoke-h200").cell.id if is_profiled else infeasible
    arguments = ["launch", "render", "--config", str(study_directory), "--results", str(tmp_path)]
    arguments += ["--root", str(ROOT), "--cell", cell, "--run", "0" if is_profiled else "1"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert command.main() == 1
    assert ("profiled_steps" if is_profiled else infeasible) in capsys.readouterr().err
    assert not (tmp_path / "cells").exists()


@pytest.mark.parametrize(
    ("of_make", "python", "expected"),
    [
        (True, ".venv/bin/python", "{prefix}/bin/python"),
        (False, ".venv/bin/python", "{root}/.venv/bin/python"),
        (True, "other/bin/python", "{root}/other/bin/python"),
    ],
)
def test_jobs_have_an_environment_from_elsewhere(tmp_path, monkeypatch, of_make, python, expected):
    prefix, root = tmp_path / "environment", tmp_path / "clone"
    prefix.mkdir()
    if of_make:
        (prefix / ".installed").touch()
    monkeypatch.setattr("sys.prefix", str(prefix))
    study, planned = scripts.study(), scripts.planned("demo")
    platform = study.platforms["local"].model_copy(update={"python": python})
    study = dataclasses.replace(study, platforms={"local": platform})
    render_run(study, planned, 1, tmp_path / "results", root)
    script = results.run_directory(tmp_path / "results", planned.cell.id, 1) / "job.sh"
    lines = script.read_text(encoding="utf-8").splitlines()
    assert f"python={expected.format(prefix=prefix, root=root)}" in lines
