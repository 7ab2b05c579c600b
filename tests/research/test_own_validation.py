"""Own runs on more GPUs, predicted from those on few."""

import json
import re
from dataclasses import replace

import pytest

from research.projection.__main__ import main
from research.projection.metrics import Quantity
from research.projection.own_validation import validate_own
from tests.projection.made_up_times import records
from tests.texts import lacking, numbers
from workflow_lib.projection.gpu_power import levels
from workflow_lib.projection.kinds import Widths
from workflow_lib.projection.own_runs import read_own, write_own
from workflow_lib.records.reading import RecordError

RUNS = read_own()


def test_runs_on_two_gpus_are_judged_from_those_on_one():
    done = validate_own(RUNS, 1)
    assert done.fitted == sum(run.platform in ("h100x1", "h200x1") for run in RUNS)
    assert {each.run.cell for each in done.judged} == {
        run.cell for run in RUNS if run.platform in ("h100x2", "h200x2")
    }
    assert all(each.fits != "no" for each in done.judged)
    # All errors have one sign: with the spread of stacks for exchanges, intervals hold them.
    for each in done.judged:
        low, high = each.time.interval(0.9)
        assert low < each.time.measured < high


def test_no_judged_run_bears_on_a_prediction():
    changed = [
        run if run.platform != "h200x2" else replace(run, step_time_s=9.0, power_per_gpu_w=100.0)
        for run in RUNS
    ]
    before, after = (validate_own(runs, 1).judged for runs in (RUNS, changed))
    assert [each.time.median for each in before] == [each.time.median for each in after]
    assert [each.energy.median for each in before] == [each.energy.median for each in after]


def test_by_the_split_two_gpus_predict_four():
    four = [
        replace(run, cell=f"{run.cell}-4", dp=4, global_batch_size=16)
        for run in RUNS
        if run.dp == 2
    ]
    done = validate_own([*RUNS, *four])
    assert (done.fitted, done.fit_gpus_at_most) == (len(RUNS), 2)
    assert [each.run for each in done.judged] == four
    assert done.goal == {"mape": 0.03, "energy_mape": 0.05}


def test_a_level_of_waiting_that_nothing_gives_may_be_anything_below_computing():
    alone = replace(RUNS[0], power_per_gpu_w=630.0)
    found = levels([alone], "H100", shipped=())
    # 630 W of 700; uniform from 0 to 0.9.
    assert (found.compute, found.wait) == (pytest.approx(0.9), pytest.approx(0.45))
    assert found.wait_sd == pytest.approx(0.9 / 12**0.5)
    computing, waiting = found.source.split("; ")
    assert computing.endswith("H100")
    assert "not measured" in waiting
    with pytest.raises(RecordError, match="power"):
        levels([], "H100", shipped=())


def test_an_error_is_of_the_measured_value():
    widths = Widths("own", {0.9: (-0.5, 1.0)}, rows=33, groups=20)
    quantity = Quantity(2.0, 2.2, 0.1, widths)
    assert quantity.error == pytest.approx(0.1)
    # e^−0.05 = 0.951229, e^0.1 = 1.10517
    assert quantity.interval(0.9) == pytest.approx((2.092705, 2.43138), rel=1e-5)


def test_the_command_says_errors_and_coverage(tmp_path, capsys):
    assert main(["validate-own", "--fit-gpus", "1"]) == 0
    said = capsys.readouterr().out
    counts = [numbers(line) for line in re.split(r"\n|\. ", said)]
    # Cells that are fitted, on so many GPUs, and judged; those that fit, perhaps do, and do not.
    assert lacking(counts, [19.0, 1.0, 18.0], [15.0, 3.0, 0.0]) == []
    assert "90 % covers" in said
    path = tmp_path / "runs.csv"
    write_own([], path)
    for more, named in (([], [37, 4]), (["--runs", str(path)], [0, 2])):
        assert main(["validate-own", *more]) == 1
        assert numbers(capsys.readouterr().err) == named


def test_the_commands_take_times_of_parts(tmp_path, capsys):
    path = tmp_path / "parts.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in records(5.0)), encoding="utf-8")
    said = []
    for more in ([], ["--parts", str(path)]):
        assert main(["validate-own", "--fit-gpus", "1", *more]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] != said[1]
    assert main(["validate-own", "--parts", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl" in capsys.readouterr().err
