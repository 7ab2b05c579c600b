"""Raw files that are damaged or contradict each other: an error that says where, never a figure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workflow_lib.analysis.__main__ import main
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records import RecordError

from .synthetic_run import START, Run
from .test_counters import write_driver_samples


def test_a_torn_last_line_is_dropped(tmp_path):
    paths = Run().write(tmp_path / "run1")
    with paths.gpu_samples("node1").open("a", encoding="utf-8") as stream:
        stream.write("1700000050.1,0,99")
    reduce_run(paths.directory)
    assert json.loads(paths.summary.read_text(encoding="utf-8"))["run"]["energy_j"] == 20_000.0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("1700000010.0,0,99\n", "3 fields, expected 10"),
        ("1700000010.0,0" + ",1" * 9 + "\n", "11 fields, expected 10"),
        ("\n", "0 fields, expected 10"),
        ("1700000010.0,0,x" + "," * 7 + "\n", "power_w is 'x', expected a finite number"),
        ("1700000010.0,0, " + "," * 7 + "\n", "power_w is ' ', expected a finite number"),
        ("1700000010.0,0" + "," * 8 + "\t\n", "read_cost_s is '\\t', expected a finite number"),
        ("1700000010.0,0,1\r" + "," * 7 + "\n", "a carriage return within the line"),
        ("1700000010.0,0,nan" + "," * 7 + "\n", "power_w is 'nan', expected a finite number"),
        ("1700000010.0," + "," * 8 + "\n", "the row has no gpu"),
        ("\0\0\0" + "," * 9 + "\n", "unix_time_s is '\\x00\\x00\\x00', expected a finite number"),
    ],
)
def test_damaged_telemetry_is_an_error_that_names_the_line(tmp_path, capsys, damage, message):
    paths = Run().write(tmp_path / "run1")
    samples = paths.gpu_samples("node1")
    lines = samples.read_text(encoding="utf-8").splitlines(keepends=True)
    samples.write_text("".join([*lines[:6], damage, *lines[6:]]), encoding="utf-8")
    assert main(["reduce", str(paths.directory)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"reduce: {samples}:7: {message}; what was recorded cannot be made")
    assert not paths.summary.exists()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("1700000010000000,0\n", "2 fields, expected 3"),
        ("1700000010000000,0,1,1\n", "4 fields, expected 3"),
        ("\n", "0 fields, expected 3"),
        ("1700000010000000,0,x\n", "power_mw is 'x', expected a whole number"),
        ("1700000010000000,0,\n", "the row has no power_mw"),
        ("1700000010000000,,100000\n", "the row has no gpu"),
        ("\0\0\0,,\n", "driver_time_us is '\\x00\\x00\\x00', expected a whole number"),
    ],
)
def test_damaged_samples_of_the_driver_are_the_same_error(tmp_path, capsys, damage, message):
    paths = Run().write(tmp_path / "run1")
    write_driver_samples(paths, -10, 50)
    samples = paths.power_samples("node1")
    lines = samples.read_text(encoding="utf-8").splitlines(keepends=True)
    samples.write_text("".join([*lines[:6], damage, *lines[6:]]), encoding="utf-8")
    assert main(["reduce", str(paths.directory)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"reduce: {samples}:7: {message}; what was recorded cannot be made")
    assert not paths.summary.exists()


def test_readings_of_gpus_that_no_rank_could_have_used_are_left_out(tmp_path):
    paths = Run().write(tmp_path / "run1")
    with paths.gpu_samples("node1").open("a", encoding="utf-8") as stream:
        stream.write(f"{START},7,99,,,,,,,\n")
    reduce_run(paths.directory)
    assert json.loads(paths.summary.read_text(encoding="utf-8"))["run"]["energy_j"] == 20_000.0


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gpu", -1, "0 to 1023"),
        ("power_w", -700.0, r"0 to 1e\+09"),
        ("power_w", 1e300, r"0 to 1e\+09"),
        ("temperature_c", -300.0, "0 to 200"),
        ("utilisation_percent", 101.0, "0 to 100"),
        ("unix_time_s", -1.0, r"0 to 1e\+11"),
    ],
)
def test_a_reading_that_cannot_be_is_an_error(tmp_path, name, value, expected):
    last = START + 50

    def edit(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, name: value} if fields["unix_time_s"] == last else fields

    with pytest.raises(RecordError, match=rf"node1\.csv:\d+: {name} is '.*', expected {expected}"):
        reduce_run(Run(edit=edit).write(tmp_path / "run1").directory)


def test_another_header_is_an_error(tmp_path):
    paths = Run().write(tmp_path / "run1")
    paths.gpu_samples("node1").write_text("unix_time_s,gpu\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"node1\.csv:1: the header is 'unix_time_s,gpu'"):
        reduce_run(paths.directory)


def test_time_that_runs_backwards_is_an_error(tmp_path):
    def set_clock(fields: dict[str, Any]) -> dict[str, Any]:
        late = fields["unix_time_s"] > START + 30
        return {**fields, "unix_time_s": fields["unix_time_s"] - 5} if late else fields

    with pytest.raises(RecordError, match="the time of GPU 0 runs backwards"):
        reduce_run(Run(edit=set_clock).write(tmp_path / "run1").directory)


def test_tokens_other_than_the_cells_are_an_error(tmp_path):
    with pytest.raises(RecordError, match=r"step 1 the ranks count 62 tokens, expected 64 "):
        reduce_run(Run(step_tokens=31).write(tmp_path / "run1").directory)


def test_ranks_of_a_replica_that_disagree_are_an_error(tmp_path):
    paths = Run().write(tmp_path / "run1")
    rank = json.loads(paths.rank(1).read_text(encoding="utf-8"))
    paths.rank(1).write_text(json.dumps({**rank, "dp_rank": 0}), encoding="utf-8")
    text = paths.rank_steps(1).read_text(encoding="utf-8")
    paths.rank_steps(1).write_text(text.replace(",32,", ",16,"), encoding="utf-8")
    with pytest.raises(RecordError, match="in step 1 the ranks of replica 0 count 16 to 32 tokens"):
        reduce_run(paths.directory)


def test_a_missing_step_is_an_error(tmp_path):
    paths = Run().write(tmp_path / "run1")
    lines = paths.rank_steps(1).read_text(encoding="utf-8").splitlines(keepends=True)
    paths.rank_steps(1).write_text("".join(lines[:-1]), encoding="utf-8")
    with pytest.raises(RecordError, match=r"are 1 to 1 \(1\), expected 1 to 2 \(2\)"):
        reduce_run(paths.directory)


def test_two_ranks_on_one_gpu_are_an_error(tmp_path):
    paths = Run().write(tmp_path / "run1")
    rank = json.loads(paths.rank(1).read_text(encoding="utf-8"))
    paths.rank(1).write_text(json.dumps({**rank, "gpu": 0}), encoding="utf-8")
    with pytest.raises(RecordError, match="ranks 0 and 1 on node node1 name the same GPU, 0"):
        reduce_run(paths.directory)


@pytest.mark.parametrize(
    ("name", "remove", "message"),
    [
        ("run1", "outcome.json", "it has not ended"),
        ("run1", "cell.json", "expected the directory of a run"),
        ("run1", "steps/rank1.csv", "rank1.csv"),
        ("first", "job.json", "a run's directory is called run0, run1"),
    ],
)
def test_what_is_no_ended_run_is_one_message(tmp_path, capsys, name, remove, message):
    paths = Run().write(tmp_path / name)
    (paths.directory / remove).unlink(missing_ok=True)
    assert main(["reduce", str(paths.directory)]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("name", ["outcome.json", "steps/rank1.csv", "telemetry/node1.csv"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff"])
def test_a_damaged_raw_file_is_named_with_what_to_do(tmp_path, capsys, name, content):
    paths = Run().write(tmp_path / "run1")
    (paths.directory / name).write_bytes(content)
    assert main(["reduce", str(paths.directory)]) == 1
    error = capsys.readouterr().err
    assert str(paths.directory / name) in error
    assert f"or remove {paths.directory}, and the same command trains this run again" in error
    assert error.count("\n") == 1
