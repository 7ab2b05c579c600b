"""Raw files that are damaged or contradict each other: an error that says where, never a figure."""

from __future__ import annotations

import json

import pytest

from tests.texts import edit
from workflow_lib.analysis.__main__ import main
from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError

from .synthetic_run import START, Run, assert_holds, setting, summary, write_driver_samples


@pytest.mark.parametrize("line", ["1700000050.1,0,99", f"{START},7,99,,,,,,,\n"])
def test_a_torn_last_line_and_readings_of_other_gpus_are_left_out(tmp_path, line):
    paths = Run().write(tmp_path / "run1")
    with paths.gpu_samples("node1").open("a", encoding="utf-8") as stream:
        stream.write(line)
    assert summary(paths)["run"]["energy_j"] == 20_000.0


NODE1, DRIVER = "telemetry/node1.csv", "telemetry/node1-power.csv"


@pytest.mark.parametrize(
    ("name", "damage", "values"),
    [
        (NODE1, "1700000010.0,0,99", ("3", "10")),
        (NODE1, "1700000010.0,0" + ",1" * 9, ("11", "10")),
        (NODE1, "", ("0", "10")),
        (NODE1, "1700000010.0,0,x" + "," * 7, ("power_w", "'x'")),
        (NODE1, "1700000010.0,0, " + "," * 7, ("power_w", "' '")),
        (NODE1, "1700000010.0,0" + "," * 8 + "\t", ("read_cost_s", "'\\t'")),
        (NODE1, "1700000010.0,0,1\r" + "," * 7, ("carriage return",)),
        (NODE1, "1700000010.0,0,nan" + "," * 7, ("power_w", "'nan'")),
        (NODE1, "1700000010.0," + "," * 8, ("gpu",)),
        (NODE1, "\0\0\0" + "," * 9, ("unix_time_s", "'\\x00\\x00\\x00'")),
        (DRIVER, "1700000010000000,0", ("2", "3")),
        (DRIVER, "1700000010000000,0,1,1", ("4", "3")),
        (DRIVER, "", ("0", "3")),
        (DRIVER, "1700000010000000,0,x", ("power_mw", "'x'")),
        (DRIVER, "1700000010000000,0,", ("power_mw",)),
        (DRIVER, "1700000010000000,,100000", ("gpu",)),
        (DRIVER, "\0\0\0,,", ("driver_time_us", "'\\x00\\x00\\x00'")),
    ],
)
def test_damaged_telemetry_is_an_error_that_names_the_line(tmp_path, capsys, name, damage, values):
    paths = Run().write(tmp_path / "run1")
    write_driver_samples(paths, lambda at_s: 400.0)
    samples = paths.directory / name
    lines = samples.read_text(encoding="utf-8").splitlines(keepends=True)
    samples.write_text("".join([*lines[:6], f"{damage}\n", *lines[6:]]), encoding="utf-8")
    assert main(["reduce", str(paths.directory)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"reduce: {samples}:7: ")
    told, _, _ = error.partition(f"{samples}:7: ")[2].partition(";")
    assert_holds(told, *values)
    assert not paths.summary.exists()


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("gpu", -1, "0 to 1023"),
        ("power_w", -700.0, "0 to 1e+09"),
        ("power_w", 1e300, "0 to 1e+09"),
        ("temperature_c", -300.0, "0 to 200"),
        ("utilisation_percent", 101.0, "0 to 100"),
        ("unix_time_s", -1.0, "0 to 1e+11"),
    ],
)
def test_a_reading_that_cannot_be_is_an_error(tmp_path, name, value, expected):
    edit = setting(lambda at_s, gpu: at_s == 50, **{name: value})
    with pytest.raises(RecordError, match=r"node1\.csv:\d+: ") as refused:
        Run(edit=edit).reduced(tmp_path)
    assert_holds(str(refused.value), name, f"'{value}'", expected)


def with_another_header(paths: RunPaths) -> None:
    paths.gpu_samples("node1").write_text("unix_time_s,gpu\n", encoding="utf-8")


def rank_edited(paths: RunPaths, **fields: object) -> None:
    """Set fields of rank 1."""
    rank = json.loads(paths.rank(1).read_text(encoding="utf-8"))
    paths.rank(1).write_text(json.dumps(rank | fields), encoding="utf-8")


def in_one_replica_with_other_tokens(paths: RunPaths) -> None:
    rank_edited(paths, dp_rank=0)
    edit(paths.rank_steps(1), ",32,", ",16,")


def without_the_last_step(paths: RunPaths) -> None:
    lines = paths.rank_steps(1).read_text(encoding="utf-8").splitlines(keepends=True)
    paths.rank_steps(1).write_text("".join(lines[:-1]), encoding="utf-8")


SET_BACK = setting(lambda at_s, gpu: at_s > 30, unix_time_s=lambda at_s: START + at_s - 5)


@pytest.mark.parametrize(
    ("run", "edit", "values"),
    [
        (Run(), with_another_header, ("node1.csv:1", "'unix_time_s,gpu'")),
        (Run(edit=SET_BACK), None, ("node1.csv", "GPU 0", "1700000025.5")),
        (Run(step_tokens=31), None, ("step 1", "62", "64")),
        (Run(), in_one_replica_with_other_tokens, ("step 1", "replica 0", "16", "32")),
        (Run(), without_the_last_step, ("1 to 1 (1)", "1 to 2 (2)")),
        (Run(), lambda paths: rank_edited(paths, gpu=0), ("ranks 0 and 1", "node1", "GPU, 0")),
    ],
)
def test_records_that_contradict_each_other_are_an_error(tmp_path, run, edit, values):
    paths = run.write(tmp_path / "run1")
    if edit is not None:
        edit(paths)
    with pytest.raises(RecordError) as refused:
        reduce_run(paths.directory)
    assert_holds(str(refused.value).replace(str(tmp_path), ""), *values)


@pytest.mark.parametrize(
    ("name", "remove", "values"),
    [
        ("run1", "outcome.json", ("outcome.json", "failure.json")),
        ("run1", "cell.json", ("cell.json",)),
        ("run1", "steps/rank1.csv", ("rank1.csv",)),
        ("first", "job.json", ("run0", "run1")),
    ],
)
def test_what_is_no_ended_run_is_one_message(tmp_path, capsys, name, remove, values):
    paths = Run().write(tmp_path / name)
    (paths.directory / remove).unlink(missing_ok=True)
    assert main(["reduce", str(paths.directory)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert_holds(error, *values)


@pytest.mark.parametrize("name", ["outcome.json", "steps/rank1.csv", "telemetry/node1.csv"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff"])
def test_a_damaged_raw_file_is_named_with_what_to_do(tmp_path, capsys, name, content):
    paths = Run().write(tmp_path / "run1")
    (paths.directory / name).write_bytes(content)
    assert main(["reduce", str(paths.directory)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert str(paths.directory / name) in error
    assert f"remove {paths.directory}" in error
