"""Where runs are, told from what they left."""

import json
import os
from pathlib import Path

import pytest

from tests.training.cells import LLAMA, cell
from workflow_lib import results, status
from workflow_lib.records import bounds
from workflow_lib.records.files import read_outcome
from workflow_lib.records.outcomes import EndedRecord, JobRecord, Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import PLAN
from workflow_lib.records.whole_files import write_json

NOW = 1_800_000_000.0
CELL = "lab/llama3-tiny/tp1-pp1-dp2_mb1_01234567"


def make_run(root, run=1, name=CELL):
    """A run that has been rendered."""
    paths = RunPaths(results.run_directory(root, name, run))
    write_json(paths.cell, cell(LLAMA))
    return paths


def queue(paths):
    write_json(paths.job, JobRecord("slurm", "4711", NOW - 7200, "ada (process 1)"))


def begin(paths):
    queue(paths)
    write_json(paths.environment, {"recorded_unix_s": NOW - 90})


def write_end_record(paths):
    begin(paths)
    words = EndedRecord("4711", ("n1", "n2"), NOW - 90, NOW - 30, 0, 0, None, "")
    write_json(paths.ended, words)


def end(paths, outcome, cause="trained to the end"):
    write_end_record(paths)
    ended = OutcomeRecord(
        outcome, cause, "4711", ("n1", "n2"), NOW - 90, NOW - 30, "COMPLETED", False
    )
    write_json(paths.outcome if outcome.is_result else paths.failure, ended)


def only(root):
    ((found,), problems) = status.find(root)
    assert problems == []
    return found


@pytest.mark.parametrize(
    ("happens", "state", "since"),
    [
        (lambda paths: None, "planned", None),
        (queue, "queued", NOW - 7200),
        (begin, "running", NOW - 90),
        (write_end_record, "ended", NOW - 30),
        (lambda paths: end(paths, Outcome.COMPLETED), "finished", NOW - 30),
        (lambda paths: end(paths, Outcome.OUT_OF_MEMORY), "finished", NOW - 30),
        (lambda paths: end(paths, Outcome.NODE_FAILURE), "failed", NOW - 30),
    ],
)
def test_a_run_is_where_its_files_say(tmp_path, happens, state, since):
    happens(make_run(tmp_path))
    found = only(tmp_path)
    assert (found.cell, found.run) == (CELL, 1)
    assert (found.state, found.since_unix_s) == (state, since)
    assert found.job_id == (None if state == "planned" else "4711")


def test_a_running_run_says_how_far_it_is_and_what_it_tried_before(tmp_path):
    paths = make_run(tmp_path)
    begin(paths)
    (paths.attempts / "1").mkdir(parents=True)
    paths.steps.mkdir()
    paths.rank_steps(0).write_text("step\n0\n1\n")
    paths.telemetry.mkdir()
    write_json(paths.telemetry_start("n7"), {})
    found = only(tmp_path)
    assert (found.steps_done, found.attempt, found.nodes) == (2, 2, ("n7",))
    assert "attempt 2, 2 steps done" in status.describe([found], NOW)


@pytest.mark.parametrize(
    ("text", "steps"), [("", 0), ("step,loss\n", 0), ("step,loss\n0,1.5\n1,1", 1)]
)
def test_steps_are_those_that_were_written_whole(tmp_path, text, steps):
    paths = make_run(tmp_path)
    begin(paths)
    paths.steps.mkdir()
    paths.rank_steps(0).write_text(text)
    assert only(tmp_path).steps_done == steps


def test_of_a_long_record_of_steps_only_the_end_is_read(tmp_path, monkeypatch):
    paths = make_run(tmp_path)
    begin(paths)
    paths.steps.mkdir()
    rows = "".join(f"{step},1.5\n" for step in range(100_000))
    paths.rank_steps(0).write_text(f"step,loss\n{rows}")
    monkeypatch.setattr(Path, "read_bytes", None)
    assert paths.rank_steps(0).stat().st_size > 2 * bounds.LINE_BYTES.most
    assert only(tmp_path).steps_done == 100_000


def test_a_failure_names_its_cause_and_the_file_to_read(tmp_path):
    paths = make_run(tmp_path)
    end(paths, Outcome.TELEMETRY_INVALID, "No sample of GPU 3.")
    paths.logs.mkdir()
    (paths.logs / "training.log").write_text("step 1\n")
    (paths.logs / "telemetry.log").write_text("no driver\n")
    text = status.describe([only(tmp_path)], NOW)
    assert "telemetry_invalid" in text
    assert "30 s" in text
    assert "n1 n2" in text
    assert "sample of GPU 3." in text
    assert str(paths.logs / "telemetry.log") in text
    assert text.endswith("1 run: telemetry_invalid 1")


def test_a_planned_run_needs_no_directory(tmp_path):
    from workflow_lib.table_files import table, write_table

    row = {column.name: None for column in PLAN}
    rows = [
        {**row, "cell": CELL, "repeats": 2, "profiled_steps": 1, "feasible": True},
        {**row, "cell": CELL + "x", "repeats": 3, "profiled_steps": 0, "feasible": False},
    ]
    write_table(table(rows, PLAN), tmp_path / "sweeps" / "demo" / "plan.parquet")
    found, _ = status.find(tmp_path)
    assert [(each.cell, each.run, each.state) for each in found] == [
        (CELL, 0, "planned"),
        (CELL, 1, "planned"),
        (CELL, 2, "planned"),
    ]
    # Of the cell, the run and the state.
    lines = status.describe(found, NOW).splitlines()[2:5]
    assert [line.split()[1:3] for line in lines] == [
        ["profiled", "planned"],
        ["1", "planned"],
        ["2", "planned"],
    ]


def test_runs_are_chosen_by_state_outcome_cell_and_node(tmp_path):
    end(make_run(tmp_path, 1), Outcome.COMPLETED)
    end(make_run(tmp_path, 2), Outcome.TIMEOUT)
    begin(make_run(tmp_path, 1, "other/gpt3-tiny/tp2_89abcdef"))
    runs, _ = status.find(tmp_path)
    assert [each.run for each in status.select(runs, outcomes=["timeout"])] == [2]
    assert [each.run for each in status.select(runs, cells=["lab/"])] == [1, 2]
    assert [each.run for each in status.select(runs, cells=["*/gpt3-tiny"])] == [1]
    assert [each.run for each in status.select(runs, nodes=["n2"], states=["finished"])] == [1]


def test_a_result_is_run_again_on_request_and_keeps_its_files(tmp_path, capsys):
    paths = make_run(tmp_path)
    end(paths, Outcome.OUT_OF_MEMORY, "rank 3 ran out of memory")
    arguments = ["--results", str(tmp_path), "--again", "--outcome", "out_of_memory"]
    assert status.main(arguments) == 0
    assert "runs them again" in capsys.readouterr().out
    assert not paths.outcome.exists()
    assert "rank 3" in read_outcome(paths).cause
    found = only(tmp_path)
    assert found.state == "again"
    text = status.describe([found], NOW)
    assert "was out_of_memory; " in text
    assert text.endswith("1 run: again 1")


def test_again_without_a_choice_touches_nothing(tmp_path, capsys):
    paths = make_run(tmp_path)
    end(paths, Outcome.COMPLETED)
    assert status.main(["--results", str(tmp_path), "--again"]) == 1
    assert "--cell '*' is everything" in capsys.readouterr().err
    assert paths.outcome.exists()


def test_again_of_a_choice_that_no_run_fits_is_an_error(tmp_path, capsys):
    end(make_run(tmp_path), Outcome.COMPLETED)
    assert status.main(["--results", str(tmp_path), "--again", "--cell", "misspelt"]) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("triptych: no run fits")


def test_json_has_a_line_for_each_run(tmp_path, capsys):
    end(make_run(tmp_path, 1), Outcome.COMPLETED)
    make_run(tmp_path, 2)
    assert status.main(["--results", str(tmp_path), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["outcome"], first["nodes"]) == ("completed", ["n1", "n2"])
    assert (second["state"], second["outcome"]) == ("planned", None)


def test_a_damaged_run_is_named_and_the_others_are_listed(tmp_path, capsys):
    damaged, whole = make_run(tmp_path), make_run(tmp_path, run=2)
    queue(damaged)
    damaged.job.write_text("{")
    end(whole, Outcome.COMPLETED)
    assert status.main(["--results", str(tmp_path), "--json"]) == 1
    told = capsys.readouterr()
    assert str(damaged.job) in told.err
    assert [json.loads(line)["run"] for line in told.out.splitlines()] == [2]


def test_a_damaged_plan_is_named_and_runs_on_disk_are_listed(tmp_path, capsys):
    end(make_run(tmp_path), Outcome.COMPLETED)
    plan = results.sweep_paths(tmp_path, "demo").plan
    plan.parent.mkdir(parents=True, exist_ok=True)
    plan.write_bytes(b"PAR1")
    assert status.main(["--results", str(tmp_path), "--json"]) == 1
    told = capsys.readouterr()
    assert str(plan) in told.err
    assert len(told.out.splitlines()) == 1


def test_a_missing_directory_is_one_line(tmp_path, capsys):
    assert status.main(["--results", os.fspath(tmp_path / "none")]) == 1
    assert "give --results" in capsys.readouterr().err


def test_what_a_program_said_moves_no_cursor(tmp_path, capsys):
    end(make_run(tmp_path), Outcome.ERROR, "\x1b[2J\x1b[1;31mgone\r\x9b2K \u202ereversed")
    assert status.main(["--results", str(tmp_path)]) == 0
    table = capsys.readouterr().out
    assert table.replace("\n", "").isprintable()
    assert "\\x1b[2J\\x1b[1;31mgone" in table
    assert status.main(["--results", str(tmp_path), "--json"]) == 0
    line = capsys.readouterr().out
    assert line.isascii()
    assert json.loads(line)["cause"].startswith("\x1b[2J")
