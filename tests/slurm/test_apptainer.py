"""Runs in a real apptainer, on a real Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
import yaml

from tests.programs import well
from tests.slurm import debian, study
from tests.slurm.test_workflow import Site, site  # noqa: F401  # a fixture
from tests.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        shutil.which("apptainer") is None or shutil.which("dpkg") is None,
        reason="needs Debian's apptainer: as root, `make test-apptainer`",
    ),
]

#: what an image takes of this machine's Debian, so that the machine's Python runs in it: a shell,
#: the C library, and what Python and torch link to
_PACKAGES = ("base-files", "bash", "coreutils", "dash", "libc6", "libstdc++6", "libgcc-s1")
_PACKAGES += ("libbz2-1.0", "libffi8", "liblzma5", "libsqlite3-0", "libssl3t64", "zlib1g")
_PACKAGES += ("libacl1", "libattr1", "libcrypt1", "libgmp10", "libpcre2-8-0", "libreadline8t64")
_PACKAGES += ("libselinux1", "libtinfo6")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small image with a variable of its own. It has no Python, no git and no Slurm."""
    directory = tmp_path_factory.mktemp("an image")
    root = directory / "root"
    root.mkdir()
    listed = subprocess.run(["dpkg", "-L", *_PACKAGES], capture_output=True, text=True, check=True)
    files = {line for line in listed.stdout.splitlines() if not line.startswith("/usr/share")}
    packed = subprocess.run(
        ["tar", "-C", "/", "--no-recursion", "--ignore-failed-read", "-cf", "-", "-T", "-"],
        input="\n".join(sorted(files)).encode(),
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-C", str(root), "-xf", "-"], input=packed.stdout, check=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if not (root / name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    (root / "usr" / "lib" / "os-release").write_text('PRETTY_NAME="A small image"\n')
    for name in ("passwd", "group"):
        (root / "etc" / name).touch()
    environment = root / ".singularity.d" / "env"
    environment.mkdir(parents=True)
    (environment / "90-environment.sh").write_text("export NCCL_DEBUG=INFO\n")
    built = directory / "small image.sif"
    subprocess.run(["apptainer", "--quiet", "build", str(built), str(root)], check=True)
    return built


@pytest.fixture
def contained(site, image, tmp_path):  # noqa: F811
    """Configures the site's platforms so that they run in a container."""

    def configure(image: Path = image, **changes: object) -> Site:
        mounted = tmp_path / "data sets"
        mounted.mkdir()
        mounts = [*debian.of_python(), str(mounted)]
        container = {"runtime": "apptainer", "image": str(image), "mounts": mounts}
        shutil.rmtree(site.config)
        study.write(site.config, container=container, **changes)
        return dataclasses.replace(site, results=tmp_path / "our results")

    return configure


def test_a_sweep_runs_in_a_container_to_its_report(contained, image, tmp_path):
    text = 'it\'s "$(touch canary)" `touch canary` $HOME;\n\\n two lines = 2'
    values = {"NCCL_DEBUG": "WARN", "TORCH_TEXT": text}
    site = contained(environment=values)  # noqa: F811
    secret = secrets.token_hex(16)
    git = tmp_path / "tools" / "git"
    git.parent.mkdir()
    git.write_text('#!/bin/sh\n[ "$1" = status ] || echo 5ca1ab1e\n')
    git.chmod(0o755)
    path = f"{git.parent}{os.pathsep}{site.environment['PATH']}"
    own = {"HF_TOKEN": secret, "PATH": path}
    site = dataclasses.replace(site, environment=dict(site.environment) | own)
    well(site.snakemake("slurm_h200"))
    runs = site.runs("h200")
    assert len(runs) == 2
    for run in runs:
        outcome = json.loads(run.outcome.read_text())
        assert (outcome["outcome"], outcome["nodes"]) == ("completed", ["h200-1", "h200-2"])
        assert run.sampled_nodes() == ["h200-1", "h200-2"]
        assert len(list(run.steps.glob("rank*.csv"))) == 2
        software = json.loads(run.cell.read_text())["software"]
        assert software["container"] == f"apptainer:{image}"
        recorded = json.loads(run.environment.read_text())
        assert recorded["operating_system"] == "A small image"
        # What git said when the script was rendered: the image has none.
        assert (recorded["commit"], recorded["uncommitted_changes"]) == ("5ca1ab1e", False)
        # The platform's values, not the image's.
        assert values.items() <= recorded["environment_variables"].items()
        files = [path for path in run.directory.rglob("*") if path.is_file()]
        assert not any(secret.encode() in path.read_bytes() for path in files)
    view = site.results / "sweeps" / "tiny-h200"
    assert pl.read_parquet(view / "runs.parquet")["outcome"].unique().to_list() == ["completed"]
    assert "simulated" in (view / "report.html").read_text().lower()


@pytest.mark.parametrize(
    ("image_name", "python", "said"),
    [
        ("missing.sif", None, r"could not open image \S+/missing\.sif: .* no such file"),
        (None, "python3.99", r"\Wpython3\.99\W: No such file or directory"),
    ],
)
def test_a_container_that_does_not_start_is_the_cause(
    contained, image, tmp_path, image_name, python, said
):
    changes = {} if python is None else {"python": python}
    site = contained(tmp_path / image_name if image_name else image, **changes)  # noqa: F811
    done = site.snakemake("slurm_mi250", "--until", "run", "--retries", "0")
    assert done.returncode != 0
    (run,) = site.runs("mi250")
    cause = json.loads(run.failure.read_text())["cause"]
    where = "on mi250-1: the container, or Python in it, did not start"
    assert re.search(f"says: .*{said}.*; {where}$", cause), cause


def test_every_node_is_named_though_the_image_has_no_slurm(contained):
    site = contained(telemetry="nvidia")  # noqa: F811
    done = site.snakemake("slurm_h200", "--until", "run", "--retries", "0")
    assert done.returncode != 0
    for run in site.runs("h200"):
        failure = json.loads(run.failure.read_text())
        named = r"did not start on h200-[12], h200-[12]: NVML did not start"
        assert re.search(named, failure["cause"]), failure["cause"]
        assert failure["nodes"] == ["h200-1", "h200-2"]


@pytest.mark.parametrize(
    ("how", "outcome"), [((), "cancelled"), (("--signal=USR2", "--batch"), "timeout")]
)
def test_no_process_of_a_container_is_left(contained, slurm_cluster, how, outcome):
    site = contained()  # noqa: F811
    path = site.config / "sweeps" / "tiny.yaml"
    sweep = yaml.safe_load(path.read_text())
    sweep["protocol"]["measured_steps"] = 5000
    path.write_text(yaml.safe_dump(sweep))
    with subprocess.Popen(
        site.command("slurm_mi250", "--until", "run", "--retries", "0"),
        cwd=study.ROOT,
        env=dict(site.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as snakemake:
        until(lambda: any(run.rank_steps(0).exists() for run in site.runs("mi250")))
        (run,) = site.runs("mi250")
        assert len(_of_containers()) >= 3  # the sampler, two ranks
        slurm_cluster.run("scancel", *how, json.loads(run.job.read_text())["job_id"])
        output, _ = snakemake.communicate()
    assert json.loads(run.failure.read_text())["outcome"] == outcome, output
    until(lambda: not _of_containers())


def _of_containers() -> list[str]:
    """Processes of containers, and what started these."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    signs = ("Apptainer runtime parent", "workflow_lib.trainers.native", "workflow_lib.telemetry")
    return [line for line in listed.stdout.splitlines() if any(sign in line for sign in signs)]
