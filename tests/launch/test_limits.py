"""Jobs that set limits on GPUs: what the script does, however it ends, and how such runs are
judged. The driver is a library that plays NVML.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.launch import runs
from tests.launch.jobs import SAMPLES, TRAINS_FOR_LONG, UNTIL_STOPPED, Job
from tests.telemetry import nvml
from workflow_lib.launch import outcome
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import LIMITS_LEFT, GpuLimits, NodeLimits
from workflow_lib.records.outcomes import JobState, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json

AS_BEFORE = {"limit.0": 700_000, "limit.1": 700_000}
LIMITED = {"limit.0": 500_000, "limit.1": 600_000}


class Limited:
    """Starts a job on a node with two H200, and knows what was set on these."""

    def __init__(self, directory: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._jobs: list[Job] = []
        self.script = nvml.Script(directory / "nvml.txt")
        self.script.say()
        self.local = directory / "local"
        self.local.mkdir()
        self._main = directory / "limits.py"
        self._main.write_text(
            "import sys, pathlib\n"
            "from workflow_lib.telemetry import limits\n"
            f"limits.LOCAL = pathlib.Path({str(self.local)!r})\n"
            "sys.exit(limits.main(sys.argv[3:]))\n",
            encoding="utf-8",
        )
        monkeypatch.setenv("FAKE_NVML", str(self.script.path))
        monkeypatch.setenv("LD_LIBRARY_PATH", str(library.parent))
        monkeypatch.setenv("SLURMD_NODENAME", runs.NODE)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def start(self, training: str = TRAINS_FOR_LONG, telemetry: str = SAMPLES) -> Job:
        limits = f'exec {shlex.quote(sys.executable)} {self._main} "$@"'
        self._jobs.append(Job(self._directory, telemetry, training, (500, 600), limits))
        return self._jobs[-1]

    @property
    def in_force(self) -> dict[str, int]:
        lines = Path(f"{self.script.path}.set").read_text(encoding="utf-8").splitlines()
        return {key: int(value) for key, value in map(str.split, lines)}

    def setters(self, job: Job) -> list[psutil.Process]:
        """What set limits, and its guard."""
        found = []
        for process in psutil.Process(job.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if str(self._main) in process.cmdline() or "guard" in process.cmdline():
                    found.append(process)
        assert len(found) == 2
        return found

    def close(self) -> None:
        for job in self._jobs:
            with contextlib.suppress(psutil.NoSuchProcess):
                script = psutil.Process(job.process.pid)
                for process in [*script.children(recursive=True), script]:
                    process.kill()
            job.process.communicate()


@pytest.fixture
def limited(
    tmp_path: Path, nvml_library: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Limited]:
    machine = Limited(tmp_path, nvml_library, monkeypatch)
    yield machine
    machine.close()


def record(paths: RunPaths) -> NodeLimits:
    return read_record(paths.node_limits(runs.NODE), NodeLimits)


def judged(job: Job) -> OutcomeRecord:
    return outcome.classify(job.paths, JobState("FINISHED"))


def test_limits_are_in_force_before_telemetry_starts_and_while_it_trains(limited):
    copies = 'cp "$FAKE_NVML.set" "$run/seen-by-{0}"; '
    job = limited.start(copies.format("training"), copies.format("telemetry") + SAMPLES)
    ended = job.finish()
    assert ended.failed_stage is None, job.output
    for step in ("telemetry", "training"):
        seen = (job.paths.directory / f"seen-by-{step}").read_text().splitlines()
        assert seen[-2:] == ["limit.0 500000", "limit.1 600000"]
    assert limited.in_force == AS_BEFORE
    assert not record(job.paths).restored_early


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGINT, signal.SIGUSR2])
def test_training_that_dies_or_a_signal_to_the_script_gives_limits_back(limited, number):
    job = limited.start("exit 3" if number is None else TRAINS_FOR_LONG)
    if number is not None:
        job.training_process()
        assert limited.in_force == LIMITED
        job.process.send_signal(number)
    assert job.finish().training_exit_code == (3 if number is None else 143)
    assert limited.in_force == AS_BEFORE
    assert LIMITS_LEFT not in judged(job).cause


def test_a_script_that_is_killed_gives_limits_back(limited):
    job = limited.start(f'echo $$ >"$run/training.pid"; {UNTIL_STOPPED}')
    job.training_process()
    setters = limited.setters(job)
    job.process.kill()
    psutil.wait_procs(setters)
    assert limited.in_force == AS_BEFORE
    job.paths.telemetry_stop.touch()


def test_a_killed_setter_ends_the_run_as_its_limits_are_gone(limited):
    job = limited.start()
    job.training_process()
    setter, _ = sorted(limited.setters(job), key=lambda process: "guard" in process.cmdline())
    setter.kill()
    job.finish()
    assert limited.in_force == AS_BEFORE
    found = judged(job)
    assert found.outcome is Outcome.ERROR
    assert "GPUs of node1" in found.cause
    assert record(job.paths).restored_early


def test_the_script_gives_back_what_killed_processes_left(limited):
    job = limited.start('touch "$run/trains"; while [ ! -e "$run/go" ]; do sleep 0.02; done')
    job.until((job.paths.directory / "trains").exists)
    setters = limited.setters(job)
    for process in setters:
        process.suspend()
    for process in setters:
        process.kill()
    psutil.wait_procs(setters)
    assert limited.in_force == LIMITED
    (job.paths.directory / "go").touch()
    assert job.finish().failed_stage is None
    assert limited.in_force == AS_BEFORE
    assert not record(job.paths).restored_early
    assert [*limited.local.glob("*/*.json")] == []


def test_without_permission_nothing_trains(limited):
    limited.script.say(set_limit_error_1="4")
    job = limited.start("touch $run/trained")
    ended = job.finish()
    assert (ended.failed_stage, ended.training_exit_code) == ("gpu_limits", None)
    assert not (job.paths.directory / "trained").exists()
    assert limited.in_force == {"limit.0": 700_000}
    found = judged(job)
    assert found.outcome is Outcome.ERROR
    for part in ("node1: GPU 1 ", "GPU-bbbb-1", " 600 W"):
        assert part in found.cause


def test_a_gpu_that_does_not_take_its_limit_back_is_said_aloud(limited):
    job = limited.start('touch "$run/trains"; while [ ! -e "$run/go" ]; do sleep 0.02; done')
    job.until((job.paths.directory / "trains").exists)
    limited.script.say(gpu_error_1="15")
    (job.paths.directory / "go").touch()
    job.finish()
    for part in (LIMITS_LEFT, "node1: GPU 1 ", "GPU-bbbb-1", "700 W"):
        assert part in judged(job).cause


# --------------------------------------------------------------------------- how a run is judged


def complete(tmp_path: Path, **changes: object) -> RunPaths:
    """A run with limits on one GPU that trained to its end; ``changes`` are of their record."""
    paths = runs.rendered(tmp_path)
    cell = read_record(paths.cell, Cell)
    training = dataclasses.replace(cell.training, power_limits_w=(500,))
    write_json(paths.cell, dataclasses.replace(cell, training=training))
    runs.complete(paths)
    gpu = GpuLimits(0, "NVIDIA H200", "GPU-aaaa-0", 500, None, 700.0, 500.0, 700.0, True)
    limits = NodeLimits(runs.NODE, (gpu,), {}, 1.0, None, "7", 2.0, 9.0)
    write_json(paths.node_limits(runs.NODE), dataclasses.replace(limits, **changes))
    return paths


def test_a_run_whose_limits_were_given_back_at_its_end_is_completed(tmp_path):
    found = outcome.classify(complete(tmp_path), None)
    assert found.outcome is Outcome.COMPLETED
    assert LIMITS_LEFT not in found.cause


def test_a_completed_run_says_which_gpus_have_limits_left(tmp_path):
    gpu = GpuLimits(0, "NVIDIA H200", "GPU-aaaa-0", 500, None, 700.0, 500.0)
    paths = complete(tmp_path, gpus=(gpu,), restored_unix_s=None, problems=("GPU is lost",))
    found = outcome.classify(paths, None)
    assert found.outcome is Outcome.COMPLETED
    for part in (LIMITS_LEFT, "GPU-aaaa-0", "700 W (GPU is lost)", "nvidia-smi -pl"):
        assert part in found.cause


@pytest.mark.parametrize("changes", [{"restored_early": True}, {"set_unix_s": None}, None, "torn"])
def test_a_run_without_its_limits_throughout_is_no_result(tmp_path, changes):
    paths = complete(tmp_path, **(changes if isinstance(changes, dict) else {}))
    file = paths.node_limits(runs.NODE)
    if changes is None:
        file.unlink()
    elif changes == "torn":
        file.write_text("{", encoding="utf-8")
    found = outcome.classify(paths, None)
    assert found.outcome is Outcome.ERROR
    assert (str(file) if changes == "torn" else runs.NODE) in found.cause
