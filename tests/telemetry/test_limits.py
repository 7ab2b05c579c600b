"""Limits that a job sets on GPUs are given back, whoever is killed; against a library that plays
NVML.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.telemetry.cells import NODE, REPOSITORY, make_cell, wait_for
from tests.telemetry.nvml import Script
from tests.waiting import until
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import NodeLimits, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


def limited(
    power_limits_w: tuple[int, ...] = (500, 600), clock_limits_mhz: tuple[int, ...] = ()
) -> Cell:
    """A cell that asks for limits on two GPUs."""
    cell = make_cell(source="nvidia")
    training = dataclasses.replace(
        cell.training, power_limits_w=power_limits_w, clock_limits_mhz=clock_limits_mhz
    )
    return dataclasses.replace(cell, training=training)


class Machine:
    """A node with two H200, its own disk, and processes of jobs."""

    def __init__(self, directory: Path, library: Path) -> None:
        self.paths = RunPaths(directory / "run")
        self.script = Script(directory / "nvml.txt")
        self.script.say()
        self.local = directory / "local"
        self.local.mkdir()
        self._library = library
        self._started: list[subprocess.Popen[str]] = []

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "SLURMD_NODENAME": NODE,
            "FAKE_NVML": str(self.script.path),
            "LD_LIBRARY_PATH": str(self._library.parent),
        }

    def command(self, module: str, *arguments: str) -> list[str]:
        """A module's ``main``, with this node's disk."""
        code = (
            "import sys, pathlib\n"
            "from workflow_lib.telemetry import __main__, limits\n"
            f"limits.LOCAL = pathlib.Path({str(self.local)!r})\n"
            f"sys.exit({module}.main(sys.argv[1:]))\n"
        )
        return [sys.executable, "-c", code, *arguments]

    def start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        self._started.append(
            subprocess.Popen(
                self.command(module, *arguments),
                cwd=REPOSITORY,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return self._started[-1]

    def hold(self, cell: Cell, paths: RunPaths | None = None) -> subprocess.Popen[str]:
        paths = paths or self.paths
        write_json(paths.cell, cell)
        return self.start("limits", "hold", str(paths.cell))

    def held(self, cell: Cell) -> subprocess.Popen[str]:
        """As hold, once the limits are in force."""
        process = self.hold(cell)
        wait_for(self.paths.limits_ready(NODE), process)
        return process

    def another_run(self) -> RunPaths:
        """The next run on this node, which asks for no limits."""
        paths = RunPaths(self.paths.directory.parent / "other")
        write_json(paths.cell, make_cell(source="nvidia"))
        return paths

    def stop(self, process: subprocess.Popen[str]) -> None:
        self.paths.telemetry.mkdir(exist_ok=True)
        self.paths.telemetry_stop.touch()
        assert process.wait() == 0, process.communicate()[1]

    @property
    def calls(self) -> list[str]:
        """What was set, in its order."""
        path = Path(f"{self.script.path}.set")
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    @property
    def in_force(self) -> dict[str, int]:
        """The latest of each: mW, and MHz where locked."""
        return {key: int(value) for key, value in (line.split() for line in self.calls)}

    @property
    def journals(self) -> list[Path]:
        return [*self.local.glob("*/*.json")]

    @property
    def record(self) -> NodeLimits:
        return read_record(self.paths.node_limits(NODE), NodeLimits)

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def machine(tmp_path: Path, nvml_library: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, nvml_library)
    yield machine
    machine.close()


def guard_of(process: subprocess.Popen[str]) -> psutil.Process:
    (guard,) = psutil.Process(process.pid).children()
    return guard


AS_BEFORE = {"limit.0": 700_000, "limit.1": 700_000}


def test_limits_are_in_force_until_the_job_ends_and_then_given_back(machine):
    process = machine.held(limited(clock_limits_mhz=(1200, 1300)))
    during = {"limit.0": 500_000, "limit.1": 600_000, "locked.0": 1200, "locked.1": 1300}
    assert machine.in_force == during
    assert machine.record.restored_unix_s is None
    machine.stop(process)
    assert machine.in_force == {**AS_BEFORE, "locked.0": 0, "locked.1": 0}
    assert machine.journals == []
    record = machine.record
    assert record.problems == ()
    assert not record.restored_early
    assert record.begun_unix_s < (record.set_unix_s or 0) < (record.restored_unix_s or 0)
    assert [
        (each.power_limit_before_w, each.power_limit_during_w, each.power_limit_after_w)
        for each in record.gpus
    ] == [(700.0, 500.0, 700.0), (700.0, 600.0, 700.0)]
    assert [each.clock_limit_asked_mhz for each in record.gpus] == [1200, 1300]
    assert "NVML" in record.missing["clock_limit_before_mhz"]


def test_clocks_alone_leave_power_limits_alone(machine):
    machine.script.say(limit="650000")
    machine.stop(machine.held(limited((), (1200, 1300))))
    assert machine.in_force == {
        **{"limit.0": 650_000, "limit.1": 650_000},
        **{"locked.0": 0, "locked.1": 0},
    }


def test_telemetry_shows_the_limit_that_is_in_force(machine):
    cell = limited()
    process = machine.held(cell)
    watching = machine.start("__main__", str(machine.paths.cell))
    wait_for(machine.paths.telemetry_ready(NODE), watching)
    machine.stop(process)
    assert watching.wait() == 0
    started = read_record(machine.paths.telemetry_start(NODE), TelemetryStart)
    assert [gpu["power_limit_w"] for gpu in started.gpus] == [500.0, 600.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_gives_them_back(machine, number):
    process = machine.held(limited())
    process.send_signal(number)
    assert process.wait() == 0
    assert machine.in_force == AS_BEFORE
    assert machine.record.restored_early
    assert machine.journals == []


def test_its_guard_gives_them_back_where_it_is_killed(machine):
    process = machine.held(limited(clock_limits_mhz=(1200, 1300)))
    process.kill()
    until(lambda: not machine.journals)
    assert machine.in_force == {**AS_BEFORE, "locked.0": 0, "locked.1": 0}
    record = machine.record
    assert record.restored_early
    assert [each.power_limit_during_w for each in record.gpus] == [500.0, 600.0]


def test_killed_between_two_gpus_both_have_what_they_had(machine):
    hang = Path(f"{machine.script.path}.hang")
    hang.write_text("limit.0 500000\n", encoding="utf-8")
    process = machine.hold(limited())
    until(lambda: machine.in_force.get("limit.0") == 500_000)
    process.kill()
    hang.unlink()
    until(lambda: not machine.journals)
    assert machine.in_force == AS_BEFORE
    assert machine.record.set_unix_s is None
    assert all(each.is_restored for each in machine.record.gpus)


def test_without_its_guard_it_gives_them_back_itself(machine):
    process = machine.held(limited())
    guard_of(process).kill()
    machine.stop(process)
    assert machine.in_force == AS_BEFORE
    assert machine.journals == []


def killed(machine: Machine) -> None:
    """A job is killed with all its processes, as at the end of Slurm's patience."""
    process = machine.held(limited())
    guard = guard_of(process)
    # A stopped process cannot act before it is killed.
    guard.suspend()
    process.kill()
    process.wait()
    guard.kill()
    until(lambda: not guard.is_running() or guard.status() == psutil.STATUS_ZOMBIE)
    assert machine.in_force == {"limit.0": 500_000, "limit.1": 600_000}
    assert machine.record.restored_unix_s is None


def test_the_next_job_gives_back_what_a_killed_one_left(machine):
    killed(machine)
    # It asks for no limits itself, and is measured with none.
    other = machine.another_run()
    watching = machine.start("__main__", str(other.cell))
    wait_for(other.telemetry_ready(NODE), watching)
    assert machine.in_force == AS_BEFORE
    started = read_record(other.telemetry_start(NODE), TelemetryStart)
    assert [gpu["power_limit_w"] for gpu in started.gpus] == [700.0, 700.0]
    assert machine.record.restored_unix_s is not None


def test_the_next_limits_are_not_given_back_to_those_that_were_left(machine):
    killed(machine)
    machine.paths.limits_ready(NODE).unlink()
    machine.stop(machine.held(limited((300, 300))))
    assert machine.in_force == AS_BEFORE
    assert [each.power_limit_before_w for each in machine.record.gpus] == [700.0, 700.0]


@pytest.mark.parametrize(
    ("key", "value", "journals"),
    # A reboot has given limits back; another node has its own to give back.
    [("boot_id", "another", 0), ("node", "node02", 1)],
)
def test_what_is_not_this_boots_or_this_nodes_is_left_alone(machine, key, value, journals):
    killed(machine)
    (path,) = machine.journals
    journal = json.loads(path.read_text(encoding="utf-8"))
    journal["limits"][key] = value
    path.write_text(json.dumps(journal), encoding="utf-8")
    calls = machine.calls
    process = machine.start("limits", "give-back", str(machine.paths.cell))
    assert process.wait() == 0
    assert machine.journals == [path][:journals]
    assert machine.calls == calls


def test_another_jobs_gpus_are_left_alone(machine):
    killed(machine)
    calls = machine.calls
    machine.script.say(uuid_0="GPU-cccc-0", uuid_1="GPU-dddd-1")
    other = machine.another_run()
    wait_for(other.telemetry_ready(NODE), machine.start("__main__", str(other.cell)))
    assert machine.calls == calls
    assert len(machine.journals) == 1


def refusal(machine: Machine, process: subprocess.Popen[str]) -> str:
    """The one sentence with which it failed."""
    _, message = process.communicate()
    assert process.returncode == 1
    assert message.startswith(f"GPU limits on {NODE}: ")
    assert message.count("\n") == 1, message
    assert not machine.paths.limits_ready(NODE).exists()
    assert machine.paths.limits_failed(NODE).exists()
    return message


def test_a_gpu_of_which_one_fails_has_what_it_had(machine):
    machine.script.say(set_clocks_error_1="2")
    message = refusal(machine, machine.hold(limited(clock_limits_mhz=(1200, 1300))))
    assert "1300 MHz" in message
    assert "limit.1 600000" in machine.calls
    assert machine.in_force == {**AS_BEFORE, "locked.0": 0}


NO_PERMISSION = "4"


@pytest.mark.parametrize("gpu", [0, 1])
def test_without_permission_nothing_is_changed(machine, gpu):
    machine.script.say(**{f"set_limit_error_{gpu}": NO_PERMISSION})
    message = refusal(machine, machine.hold(limited(clock_limits_mhz=(1200, 1300))))
    limits = ("500 W and 1200 MHz", "600 W and 1300 MHz")[gpu]
    assert f"limited to {limits}" in message
    assert "set-up-a-cluster.md" in message
    assert machine.in_force == dict([*AS_BEFORE.items()][:gpu])
    assert machine.journals == []


@pytest.mark.parametrize(
    ("limits", "said", "expected"),
    [
        (((199, 600),), {}, ("200 to 700 W", "power_limits_w", " 199")),
        (((500, 701),), {}, ("200 to 700 W", "power_limits_w", " 701")),
        (((), (1200, 1981)), {}, ("1980 MHz", "clock_limits_mhz", " 1981")),
        (((500, 600),), {"mig": "1"}, (" MIG",)),
        (((500, 600),), {"count": "1"}, ("1 of the 2 GPUs",)),
    ],
)
def test_what_a_gpu_cannot_have_is_refused(machine, limits, said, expected):
    machine.script.say(**said)
    message = refusal(machine, machine.hold(limited(*limits)))
    assert [part for part in expected if part not in message] == []
    assert set(machine.in_force.items()) <= set(AS_BEFORE.items())
    assert machine.journals == []


def test_what_could_not_be_given_back_is_said_and_tried_again(machine):
    process = machine.held(limited())
    machine.script.say(gpu_error_1="15")  # it fell off the bus
    machine.paths.telemetry.mkdir()
    machine.paths.telemetry_stop.touch()
    _, message = process.communicate()
    assert process.returncode == 1
    record = machine.record
    (said,) = record.problems
    assert said in message
    for part in ("GPU 1 ", "GPU-bbbb-1", "700 W: GPU is lost"):
        assert part in said
    assert [each.is_restored for each in record.gpus] == [True, False]
    assert record.restored_unix_s is None
    assert machine.in_force["limit.0"] == 700_000
    machine.script.say()
    again = machine.start("limits", "give-back", str(machine.paths.cell))
    assert again.wait() == 0
    assert machine.in_force == AS_BEFORE


def test_a_run_is_not_measured_with_limits_that_were_left(machine):
    killed(machine)
    machine.script.say(set_limit_error=NO_PERMISSION)
    other = machine.another_run()
    process = machine.start("__main__", str(other.cell))
    _, message = process.communicate()
    assert process.returncode == 1
    assert str(machine.paths.directory) in message
    assert "left on GPU 0" in message
    assert "nvidia-smi -pl" in message


def test_a_journal_that_cannot_be_read_is_named(machine):
    killed(machine)
    (path,) = machine.journals
    path.write_text("{", encoding="utf-8")
    other = machine.another_run()
    _, message = machine.start("__main__", str(other.cell)).communicate()
    assert f"this node: {path}" in message
    assert message.count("\n") == 1


def test_a_directory_that_others_may_write_keeps_no_journal(machine):
    directory = machine.local / f"triptych-gpu-limits-{os.getuid()}"
    directory.mkdir()
    directory.chmod(0o777)
    assert f"{directory} must be" in refusal(machine, machine.hold(limited()))
    assert machine.in_force == AS_BEFORE
