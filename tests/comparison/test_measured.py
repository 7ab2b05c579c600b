"""Commands that were measured, set beside each other."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.texts import numbers
from workflow_lib.comparison import __main__ as command
from workflow_lib.comparison import measured
from workflow_lib.intervals.differences import apart
from workflow_lib.records.reading import RecordError


def write_run(directory: Path, step_s: float, started_s: float, **changed: Any) -> None:
    """A run's record, of 2 J/s for each s of a step."""
    directory.mkdir(parents=True)
    record = {
        "program": "python3",
        "nodes": ["n1"],
        "missing": {},
        "started_unix_s": started_s,
        "exit_code": 0,
        "simulated": False,
        "rung": 3,
        "values": {
            "step_time_s": step_s,
            "energy_per_step_j": 2 * step_s,
            "energy_error_share": 0.0,
        },
        "invalid": [],
        "gpus": [{"uuid": "GPU-1", "name": "NVIDIA H100"}],
    }
    (directory / "measured.json").write_text(json.dumps({**record, **changed}), encoding="utf-8")


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Three runs a side, by turns: A takes twice as long."""
    for number, factor in enumerate((1.0, 1.01, 0.99)):
        write_run(tmp_path / f"a/{number}", 0.8 * factor, 100.0 + 20 * number)
        write_run(tmp_path / f"b/{number}", 0.4 * factor, 110.0 + 20 * number)
    return tmp_path / "a", tmp_path / "b"


def rows(text: str) -> dict[str, list[str]]:
    """Unit of a row → its fields."""
    lines = [line.split() for line in text.splitlines() if "to" in line.split()]
    return {fields[0]: fields[1:] for fields in lines}


def test_a_ratio_has_the_interval_that_its_runs_allow(sides, capsys):
    assert command.main([*map(str, sides)]) == 0
    found = rows(capsys.readouterr().out)
    assert set(found) == {"s/step", "J/step"}
    a, b, estimate, low, _, high = found["s/step"]
    assert (float(a), float(b), float(estimate)) == (0.8, 0.4, 2.0)
    assert float(low) < 2.0 < float(high)
    assert float(high) - float(low) < 0.2
    assert found["J/step"][2:] == found["s/step"][2:]


def test_the_interval_is_that_of_runs_apart(sides):
    runs = [measured.read_side(side) for side in sides]
    logs = [[math.log(run["values"]["step_time_s"]) for run in side] for side in runs]
    expected = apart(*logs, (0, 2, 4), (1, 3, 5))
    low, high = (float(rows(measured.compare(*sides))["s/step"][n]) for n in (3, 5))
    assert (low, high) == pytest.approx([math.exp(expected.low), math.exp(expected.high)], abs=1e-4)


@pytest.mark.parametrize(
    ("told", "share"),
    [
        ({"energy_error_share": 0.02}, 0.02),
        # a record of before it was told, of a counter; and one of power alone
        ({"energy_j": 100.0, "energy_integral_j": 98.0}, 0.02),
        ({"energy_j": 100.0, "energy_integral_j": 100.0}, None),
    ],
)
def test_energies_in_step_with_the_sensor_widen_their_interval(sides, told, share):
    without = rows(measured.compare(*sides))
    path = sides[0] / "1" / "measured.json"
    record = json.loads(path.read_text("utf-8"))
    del record["values"]["energy_error_share"]
    record["values"] |= told
    path.write_text(json.dumps(record), encoding="utf-8")
    found = rows(measured.compare(*sides))
    assert found["s/step"] == without["s/step"]
    if share is None:
        assert "J/step" not in found
        return
    low, high = (float(without["J/step"][n]) for n in (3, 5))
    widened = [float(found["J/step"][n]) for n in (3, 5)]
    assert widened == pytest.approx([low / (1 + share), high / (1 - share)], abs=2e-4)


def test_a_measure_that_a_run_lacks_is_there_with_the_reason(sides):
    path = sides[1] / "1" / "measured.json"
    record = json.loads(path.read_text("utf-8"))
    del record["values"]["energy_per_step_j"]
    record["missing"] = {"energy_per_step_j": "energy_not_covered"}
    path.write_text(json.dumps(record), encoding="utf-8")
    text = measured.compare(*sides)
    (line,) = (line for line in text.splitlines() if line.startswith("J/step"))
    assert "energy not covered" in line
    assert numbers(line) == [1, 3]
    # No run of either side has this one, and records of this test do not say why.
    lacking = "no reason in 3 of 3 runs of A; no reason in 3 of 3 runs of B"
    assert f"\nJ/token       not compared: {lacking}\n" in text
    assert set(rows(text)) == {"s/step"}


def test_runs_that_ended_with_an_error_are_counted(sides):
    whole = measured.compare(*sides).splitlines()
    for number, changed in ((0, {"exit_code": 1}), (1, {"signal": 9})):
        path = sides[1] / str(number) / "measured.json"
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changed), encoding="utf-8")
    (told,) = set(measured.compare(*sides).splitlines()) - set(whole)
    assert numbers(told)[:2] == [2, 3]


def test_one_run_a_side_has_no_interval(tmp_path):
    write_run(tmp_path / "a", 0.8, 100.0)
    write_run(tmp_path / "b", 0.4, 200.0)
    text = measured.compare(tmp_path / "a", tmp_path / "b")
    assert "2.0000   not known" in text
    assert rows(text) == {}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"rung": 1}, "1 and 3"),
        ({"simulated": True}, "False and True"),
        ({"invalid": ["gap"]}, "gap"),
        ({"values": {}}, "conclude"),
        ({"gpus": [{"uuid": f"GPU-{n}", "name": "NVIDIA H100"} for n in "12"]}, "on 2× NVIDIA"),
        (None, "damaged"),
    ],
)
def test_what_cannot_be_compared_is_refused(sides, capsys, changed, told):
    write_run(sides[1] / "more", 0.4, 300.0, **(changed or {}))
    if changed is None:
        (sides[1] / "more/measured.json").write_text("[1", encoding="utf-8")
    assert command.main([*map(str, sides)]) == 1
    assert told in capsys.readouterr().err
    with pytest.raises(RecordError):
        measured.compare(*sides)


def test_a_copy_is_no_repeat(sides):
    shutil.copytree(sides[1] / "0", sides[1] / "copy")
    with pytest.raises(RecordError, match="one run twice"):
        measured.compare(*sides)


def test_sweeps_need_a_place_for_what_is_written(sides, tmp_path, capsys):
    with pytest.raises(SystemExit) as error:
        command.main([str(sides[0]), str(tmp_path)])
    assert error.value.code == 2
    assert "--output" in capsys.readouterr().err
