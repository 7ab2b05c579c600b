"""The watcher of one rank, with real processes that end in all the ways there are."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import programs
from tests.waiting import until
from workflow_lib.launch.job.rank_watch import out_of_memory_kills
from workflow_lib.launch.processes import is_running
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import ExitRecord
from workflow_lib.records.paths import RunPaths, node_name

#: of the kernel's version 1, where this machine has it and we may make control groups
MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")
SLEEPS = "print('ready', flush=True); import time; time.sleep(600)"


def start(directory, program, **environment):
    """A watched rank 3 that runs a line of Python."""
    watched = [sys.executable, "-m", "workflow_lib.launch.job.rank", directory, "-c", program]
    return programs.start(watched, env=os.environ | {"RANK": "3"} | environment)


def child_of(watcher):
    """The rank's process, once it says that it is ready."""
    assert watcher.stdout.readline() == "ready\n"
    (child,) = Path(f"/proc/{watcher.pid}/task/{watcher.pid}/children").read_text().split()
    return int(child)


def record(directory):
    return read_record(RunPaths(directory).rank_exit(3), ExitRecord)


def test_a_rank_that_ends_well_leaves_no_record(tmp_path):
    watcher = start(tmp_path, "import sys; print(sys.argv)")
    assert watcher.communicate()[0] == "['-c']\n"
    assert watcher.returncode == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("program", "code", "exit_code", "number"),
    [
        ("import sys; sys.exit(3)", 3, 3, None),
        ("import os; os.kill(os.getpid(), 9)", 137, None, "SIGKILL"),
        ("import ctypes; ctypes.string_at(0)", 139, None, "SIGSEGV"),
        ("import os; os.abort()", 134, None, "SIGABRT"),
    ],
)
def test_how_a_rank_ended_is_handed_on(tmp_path, program, code, exit_code, number):
    before = time.time()
    watcher = start(tmp_path, program)
    watcher.communicate()
    found = record(tmp_path)
    assert watcher.returncode == code
    assert (found.rank, found.node) == (3, node_name())
    assert (found.exit_code, found.signal, found.told_to_end) == (exit_code, number, False)
    assert before < found.unix_time_s < time.time()


@pytest.mark.parametrize("is_by_launcher", [True, False])
def test_a_launcher_that_asks_a_rank_to_end_is_heard_and_told_from_others(tmp_path, is_by_launcher):
    watcher = start(tmp_path, SLEEPS)
    child = child_of(watcher)
    os.kill(watcher.pid if is_by_launcher else child, signal.SIGTERM)
    assert watcher.wait() == 143
    found = record(tmp_path)
    assert (found.signal, found.told_to_end) == ("SIGTERM", is_by_launcher)


def test_a_rank_may_do_as_it_likes_about_a_signal_that_it_is_handed(tmp_path):
    handles = (
        "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0)); "
        "print('ready', flush=True); signal.pause()"
    )
    watcher = start(tmp_path, handles)
    child_of(watcher)
    watcher.send_signal(signal.SIGUSR1)
    assert watcher.wait() == 0
    assert not RunPaths(tmp_path).exits.exists()


def test_a_rank_dies_with_its_watcher(tmp_path):
    watcher = start(tmp_path, SLEEPS)
    child = child_of(watcher)
    watcher.kill()
    watcher.communicate()  # until nobody holds its output any more: the rank did as well
    until(lambda: not is_running(child))


def test_a_rank_whose_local_job_is_gone_ends_and_writes_nothing(tmp_path):
    script = subprocess.Popen(["sleep", "60"])
    watcher = start(tmp_path, SLEEPS, TRIPTYCH_JOB_PROCESS=str(script.pid))
    child_of(watcher)
    script.kill()
    script.wait()
    assert "script is gone" in watcher.communicate()[1]
    assert watcher.returncode == 137
    assert list(tmp_path.iterdir()) == []


def test_a_record_that_cannot_be_written_changes_no_exit_code(tmp_path):
    (tmp_path / "exits").write_text("in the way")
    watcher = start(tmp_path, "import sys; sys.exit(7)")
    assert "not written" in watcher.communicate()[1]
    assert watcher.returncode == 7


@pytest.mark.skipif(
    not (MEMORY_GROUPS / "memory.oom_control").parent.is_dir() or os.getuid() != 0,
    reason="needs root, and control groups of version 1",
)
def test_a_rank_that_the_kernel_ends_for_want_of_memory_is_counted(tmp_path):
    own = next(
        line.split(":", 2)[2]
        for line in Path("/proc/self/cgroup").read_text().splitlines()
        if ":memory:" in line
    )
    group = MEMORY_GROUPS / own.lstrip("/") / f"triptych-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    enters = f"open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    watches = "from workflow_lib.launch.job.rank import main; raise SystemExit(main(sys.argv[1:]))"
    # Not before its watcher has counted what was ended until now.
    eats = "import time; time.sleep(2); x = [bytearray(b'x' * (1 << 20)) for _ in range(256)]"
    try:
        program = f"import os, sys; {enters}; {watches}"
        watched = [sys.executable, "-c", program, tmp_path, "-c", eats]
        watcher = programs.run(watched, env=os.environ | {"RANK": "3"})
    finally:
        group.rmdir()
    assert watcher.returncode == 137
    assert (record(tmp_path).signal, record(tmp_path).out_of_memory_kills) == ("SIGKILL", 1)


@pytest.mark.parametrize(
    ("membership", "file", "text", "expected"),
    [
        ("0::/job/step\n", "job/step/memory.events", "low 0\noom 9\noom_kill 2\n", 2),
        # A step without a memory controller of its own is counted with its job.
        ("0::/job/step\n", "job/memory.events", "oom_kill 3\noom_group_kill 0\n", 3),
        ("7:cpu:/x\n4:memory:/job\n0::/\n", "memory/job/memory.oom_control", "oom_kill 1\n", 1),
        # Before Linux 4.13 there was no count.
        ("4:memory:/job\n", "memory/job/memory.oom_control", "under_oom 0\n", None),
        ("0::/../..\n", "job/memory.events", "oom_kill 3\n", None),
    ],
)
def test_kills_are_counted_in_the_nearest_control_group(tmp_path, membership, file, text, expected):
    own, mounted = tmp_path / "cgroup", tmp_path / "fs"
    own.write_text(membership)
    (mounted / file).parent.mkdir(parents=True)
    (mounted / file).write_text(text)
    assert out_of_memory_kills(own, mounted) == expected
