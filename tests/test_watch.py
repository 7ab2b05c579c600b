"""``triptych watch`` shows runs as they go, in a terminal or once."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from rich.console import Console

from tests import programs
from tests.analysis.synthetic_run import START, Run, cell
from tests.conftest import ROOT
from tests.live.running import CELL, NOW, paths_of, write
from workflow_lib import results, watch
from workflow_lib.live import Watcher
from workflow_lib.records.outcomes import Outcome, OutcomeRecord
from workflow_lib.records.whole_files import write_json

WATCH = [sys.executable, "-m", "workflow_lib", "watch"]

COUNTS = "communication_timeout 1, queued 1, running 1"


def shown(root, now=NOW, width=160):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(watch.frame(Watcher(root).look(now), root))
    return captured.get()


def test_a_frame_tells_of_each_run_under_way_and_of_what_failed(tmp_path):
    write(tmp_path)
    text = shown(tmp_path)
    assert f"3 runs: {COUNTS}" in text
    (line,) = re.findall(f"{CELL} run 1: .*", text)
    for value in ("step 3 of 3", "6 tokens/s", "job 4711", "1.5 min"):
        assert value in line
    # 400 W and 600 W, the hotter one at 60 °C.
    assert "node1 1,000 W 60 °C power cap on 2 of 2" in " ".join(text.split())
    # What a program said is text, not markup, and one line.
    said = 'communication_timeout: rank 3 on n2: "NCCL" said [red]C:\\temp[/red] and died'
    assert f"{CELL} run 2, 30 s ago: {said}" in " ".join(text.split())
    # Nothing is cut off on a narrow terminal.
    assert "".join(shown(tmp_path, width=60).split()) == "".join(text.split())


def test_what_is_missing_is_a_dash_or_says_so(tmp_path):
    write(tmp_path, Run(edit=lambda fields: {**fields, "power_w": None, "event_reasons": None}))
    assert "node1 – W 60 °C throttling not" in " ".join(shown(tmp_path).split())
    assert "no reading for 1.0 h" in shown(tmp_path, NOW + 3600)


def test_readings_that_are_simulated_say_so(tmp_path):
    write(tmp_path, Run(simulated=True))
    assert "node1 (simulated)" in shown(tmp_path)


def test_a_run_without_a_sampler_and_a_file_that_is_damaged_are_shown(tmp_path):
    paths = write(tmp_path)
    shutil.rmtree(paths.telemetry)
    assert "no sampler yet" in shown(tmp_path)
    paths.cell.write_text("{")
    assert re.search(r"cannot be read:(.|\n)*cell\.json: ", shown(tmp_path, width=400))


def test_a_directory_of_which_nothing_can_be_read_is_not_called_empty(tmp_path):
    plan = results.sweep_paths(tmp_path, "s").plan
    plan.parent.mkdir(parents=True)
    plan.write_text("no table")
    assert "0 runs: 1 file" in shown(tmp_path)


def test_of_many_failures_the_latest_are_shown_and_the_rest_counted(tmp_path):
    for run in range(1, 14):
        paths = paths_of(tmp_path, run)
        write_json(paths.cell, replace(cell(), id=CELL))
        ended = OutcomeRecord(
            Outcome.ERROR, f"cause{run}.", None, (), None, START + run, None, False
        )
        write_json(paths.failure, ended)
    text = shown(tmp_path)
    assert re.findall(r"cause(\d+)\.", text) == [str(run) for run in range(13, 3, -1)]
    assert "3 more runs" in text


def call(*argv):
    return programs.run([*WATCH, *map(str, argv)])


def test_where_there_is_no_terminal_one_frame_is_printed(tmp_path):
    write(tmp_path)
    done = call("--results", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"3 runs: {COUNTS}" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (["--results", "nowhere"], 1, "is not a directory"),
        (["--every", "0.1"], 2, "too often"),
        (["--every", "soon"], 2, "soon is not a number of seconds"),
    ],
)
def test_a_wrong_call_is_one_message(argv, code, said):
    done = call(*argv)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_in_a_terminal_it_follows_the_files_until_ctrl_c(tmp_path):
    write(tmp_path)
    terminal, own = pty.openpty()
    process = subprocess.Popen(
        [*WATCH, "--results", tmp_path, "--every", "1"],
        cwd=ROOT,
        stdin=own,
        stdout=own,
        stderr=own,
        env={**os.environ, "COLUMNS": "160", "LINES": "50", "TERM": "xterm"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    os.close(own)
    seen = ""

    def wait_for(words):
        nonlocal seen
        while words not in seen:
            seen += os.read(terminal, 65_536).decode("utf-8", "replace")
        seen = seen.partition(words)[2]

    try:
        wait_for("queued 1, running 1")
        write_json(paths_of(tmp_path, 3).environment, {"recorded_unix_s": time.time()})
        wait_for("running 2")
        process.send_signal(signal.SIGINT)
        wait_for("\x1b[?1049l")  # the terminal is as it was
        assert process.wait() == 0
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
