"""What ``run --brief`` says of runs that go on, and what it does with Snakemake's end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests import programs
from tests.test_status import NOW, begin, end, make_run
from workflow_lib import brief, results
from workflow_lib.brief import Progress
from workflow_lib.records.nodes import LIMITS_LEFT
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.tables import PLAN
from workflow_lib.table_files import table, write_table

CELL = "lab/llama3-tiny/tp1-pp1-dp2_mb1_01234567"


def plan(root: Path, repeats: int) -> None:
    """Write the plan of a sweep with one cell."""
    rows = [
        {column.name: None for column in PLAN}
        | {"cell": CELL, "feasible": True, "repeats": repeats, "profiled_steps": 0}
    ]
    write_table(table(rows, PLAN), results.sweep_paths(root, "s").plan)


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    """A results directory of a sweep with three runs of one cell."""
    plan(tmp_path, repeats=3)
    return tmp_path


class Said:
    def __init__(self, root: Path) -> None:
        self.text = io.StringIO()
        console = Console(file=self.text, width=200)
        self.progress = Progress(root, ["s"], console, began_s=100.0)

    def look(self, now_s: float) -> tuple[str, list[str]]:
        self.text.seek(0)
        self.text.truncate()
        under_way = self.progress.look(now_s, NOW)
        return under_way, self.text.getvalue().splitlines()


WAITS, REPORTS = "starting a run", "tables, figures and the report"


def one_line(said: Said, now_s: float, *words: str) -> str:
    """What is under way, beside the only line that is written, which holds these words."""
    under_way, (line,) = said.look(now_s)
    assert [word for word in words if word not in line] == [], line
    return under_way


def test_it_says_each_run_once_and_how_long_the_others_will_take(planned):
    said = Said(planned)
    assert said.look(101.0) == (WAITS, ["3 runs to do"])
    first, second, third = (make_run(planned, run) for run in (1, 2, 3))
    begin(first)
    assert said.look(102.0) == ("llama3-tiny tp1-pp1-dp2_mb1 starts", [])
    end(first, Outcome.COMPLETED)
    # 20 s for one: 40 s for two.
    assert one_line(said, 120.0, "1 of 3", "mb1: completed", "40 s left") == WAITS
    assert said.look(121.0) == (WAITS, [])
    end(second, Outcome.NODE_FAILURE, "n1 died")
    assert one_line(said, 130.0, "2 of 3", "run 2: node_failure: n1 died") == WAITS
    end(third, Outcome.OUT_OF_MEMORY, "too large")
    assert one_line(said, 140.0, "3 of 3", "run 3: out_of_memory") == REPORTS


def test_what_was_done_before_is_counted_and_is_no_measure_of_time(planned):
    end(make_run(planned, 1), Outcome.COMPLETED)
    said = Said(planned)
    one_line(said, 101.0, "3 runs", "1 of which")
    end(make_run(planned, 2), Outcome.COMPLETED)
    one_line(said, 130.0, "30 s left")


def test_a_run_that_failed_before_is_one_to_do_and_takes_the_time_that_it_takes(planned):
    first, second, third = (make_run(planned, run) for run in (1, 2, 3))
    end(first, Outcome.COMPLETED)
    end(second, Outcome.ERROR, "rank 0 died")
    end(third, Outcome.ERROR, "rank 1 died")
    said = Said(planned)
    assert one_line(said, 101.0, "3 runs", "1 of which") == WAITS
    second.failure.unlink()
    begin(second)
    assert said.look(110.0)[1] == []
    end(second, Outcome.COMPLETED)
    # 30 s since the start for one run, and one is left.
    one_line(said, 130.0, "2 of 3", "run 2: completed", "30 s left")
    third.failure.unlink()
    begin(third)
    said.look(131.0)
    end(third, Outcome.COMPLETED)
    assert one_line(said, 150.0, "3 of 3", "run 3: completed") == REPORTS


def test_snakemake_does_not_outlive_a_progress_that_breaks(tmp_path, monkeypatch):
    def broken(*_: object) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr(Progress, "look", broken)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    pid = tmp_path / "pid"
    script = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    with pytest.raises(ZeroDivisionError):
        brief.follow([sys.executable, "-c", script], tmp_path, ["s"], tmp_path)
    assert not Path(f"/proc/{pid.read_text()}").exists()


def test_a_result_that_left_gpus_limited_says_so(planned):
    said = Said(planned)
    said.look(101.0)
    cause = f"trained to the end; {LIMITS_LEFT} on n1: GPU 0"
    end(make_run(planned, 1), Outcome.COMPLETED, cause)
    one_line(said, 120.0, "1 of 3", f"completed: {cause}")


def test_runs_are_counted_again_when_snakemake_replaces_the_plan(planned):
    end(make_run(planned, 1), Outcome.COMPLETED)
    said = Said(planned)
    said.look(101.0)
    end(make_run(planned, 2), Outcome.COMPLETED)
    said.look(120.0)
    plan(planned, repeats=5)
    one_line(said, 121.0, "5 runs", "2 of which")
    end(make_run(planned, 3), Outcome.COMPLETED)
    # 40 s for two runs: 40 s for two more.
    one_line(said, 140.0, "3 of 5", "40 s")


def test_before_a_plan_there_is_nothing_to_say(tmp_path):
    assert Said(tmp_path).look(101.0) == ("planning", [])


def follow(script: str, root: Path) -> subprocess.Popen[str]:
    """``follow`` of a command of Python's, in a process of its own."""
    call = (
        "import sys; from pathlib import Path; from workflow_lib.brief import follow;"
        "sys.exit(follow([sys.executable, '-c', sys.argv[1]], Path(sys.argv[2]), ['s'], Path()))"
    )
    command = [sys.executable, "-c", call, script, str(root)]
    return programs.start(command, env={**os.environ, "COLUMNS": "200"})


def test_a_failure_shows_the_end_of_the_log_and_keeps_the_exit_code(tmp_path):
    child = follow(
        "print('all is well'); print('disk \\x1b[31mfull'); raise SystemExit(3)", tmp_path
    )
    out, err = child.communicate()
    assert child.returncode == 3
    log = tmp_path / "logs" / "snakemake-s.log"
    assert out.splitlines()[0] == f"Snakemake's log: {log}"
    assert "exit code 3 after" in err
    assert err.splitlines()[-2:] == ["  all is well", "  disk \\x1b[31mfull"]
    assert log.read_text() == "all is well\ndisk \x1b[31mfull\n"


#: how Snakemake reports a failed rule whose code raised, and one whose command failed
RAISED = """triptych: disk full
RuleException:
WorkflowError in file "/c/rules/wait.smk", line 59:
run1: the disk
is full
  File "/c/rules/run.smk", line 65, in __rule_run
"""
COMMAND = """collect: plan.parquet is damaged
tee: /full/log: No space left on device
RuleException:
CalledProcessError in file "/c/rules/run.smk", line 43:
Command 'set -euo pipefail; …' returned non-zero exit status 1.
Error in rule collect:
"""


def test_a_failure_shows_causes_that_the_end_of_the_log_has_no_more(tmp_path):
    lines = "".join(f"line {number}\n" for number in range(20))
    log = f"triptych: training: 1 steps done\n{RAISED}{lines}{COMMAND}{RAISED}{lines}{'x' * 999}"
    child = follow(f"print({log!r}); raise SystemExit(1)", tmp_path)
    _, err = child.communicate()
    causes, end = err.splitlines()[1:3], err.splitlines()[3:5]
    assert [line.strip().partition(":")[0] for line in causes] == ["run1", "collect"]
    assert causes[0].endswith("the disk is full")
    assert str(tmp_path / "logs/snakemake-s.log") in end[0]
    assert end[1] == "  line 6"
    assert err.splitlines()[-1] == f"  {'x' * 300} …"


def test_of_many_causes_a_few_are_shown(tmp_path):
    log = "".join(RAISED.replace("run1", f"run{number}") for number in range(1, 9))
    child = follow(f"print({log!r}); raise SystemExit(1)", tmp_path)
    _, err = child.communicate()
    last, others = err.splitlines()[5:7]
    assert last.startswith("  run5: ")
    assert "and 3 more" in others


def test_success_says_where_to_look(tmp_path):
    child = follow("pass", tmp_path)
    out, _ = child.communicate()
    assert child.returncode == 0
    assert out.splitlines()[-1].endswith(f" {tmp_path}/sweeps/s/report.html")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_snakemake_and_its_end_is_waited_for(tmp_path, number):
    script = (
        "import signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: (print('cleaned up'), sys.exit(7)))\n"
        "print('ready', flush=True)\n"
        "while True: time.sleep(1)"
    )
    child = follow(script, tmp_path)
    log = tmp_path / "logs" / "snakemake-s.log"
    while not (log.exists() and log.read_text() == "ready\n"):
        assert child.poll() is None
    child.send_signal(number)
    out, _ = child.communicate()
    assert child.returncode == 7
    assert out.count(f"{signal.Signals(number).name}: stopping") == 1
    assert log.read_text() == "ready\ncleaned up\n"


def test_a_signal_in_the_moment_of_the_start_leaves_no_snakemake_behind(tmp_path):
    call = (
        "import os, signal, subprocess, sys; from pathlib import Path\n"
        "from workflow_lib import brief\n"
        "class Slow(subprocess.Popen):\n"
        "    def __init__(self, *arguments, **options):\n"
        "        super().__init__(*arguments, **options)\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "        print(self.pid, file=sys.stderr)\n"
        "brief.subprocess.Popen = Slow\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(1000)']\n"
        "sys.exit(brief.follow(command, Path(sys.argv[1]), ['s'], Path()))"
    )
    done = programs.run([sys.executable, "-c", call, str(tmp_path)])
    assert done.returncode == 128 + signal.SIGTERM
    assert not Path("/proc", done.stderr.split()[0]).exists()
