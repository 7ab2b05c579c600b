"""A prediction beside runs that tried it."""

import dataclasses

import pytest

from tests.placement.made import measured, pipeline_cell, rotations
from workflow_lib.intervals.differences import Interval
from workflow_lib.placement.advice import advise
from workflow_lib.placement.placed import PlacementRecord, record
from workflow_lib.placement.readings import Measured, Run
from workflow_lib.placement.verification import verify
from workflow_lib.records import RecordError, read_record, write_json

_NOTHING = {("n1", 0): 0.0, ("n1", 1): 0.0}


def placement(**fields):
    cells = [pipeline_cell(2, layers=32, head=True, order=order) for order in rotations(2, 2)]
    advice = advise(measured(cells, _NOTHING), cells[0].id)
    return dataclasses.replace(record(advice, "h200/tiny/placed_mb1_01234567", "made"), **fields)


def tried(ratios, uuid="GPU-n1-0"):
    """Runs of both cells in as many blocks, the placed ones so many times as long."""
    cell = pipeline_cell(2, layers=32, head=True)
    degrees = dataclasses.replace(cell.degrees, stage_layers=(17, 15), gpu_uuids=("a", "b"))
    placed = dataclasses.replace(cell, id="h200/tiny/placed_mb1_01234567", degrees=degrees)
    of = measured([cell], _NOTHING, rounds=len(ratios))
    readings = [
        dataclasses.replace(each, uuid=uuid if each.gpu == 0 else each.uuid) for each in of.readings
    ]
    runs = []
    for number, ratio in enumerate(ratios, start=1):
        runs.append(Run(cell, number, 1e9 + 10 * number, 2.0, 1000.0, False))
        runs.append(Run(placed, number, 1e9 + 10 * number + 1, 2.0 * ratio, None, False))
    return Measured("tried", runs, readings, {})


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((0.97, 0.971, 0.969), "holds"),
        ((1.0, 1.001, 0.999), "wrong"),
        ((0.9, 1.1, 1.0), "undecided"),
    ],
)
def test_the_verdict_is_by_both_intervals(ratios, verdict):
    (time,) = verify(placement(time_gain=Interval(0.03, 0.02, 0.04)), tried(ratios))
    assert time.verdict == verdict


def test_gains_are_by_hand():
    (time,) = verify(placement(), tried((0.97, 0.97, 0.97)))
    assert time.measured.estimate == pytest.approx(0.03)
    assert time.measured.low == pytest.approx(0.03)


def test_other_gpus_are_refused():
    with pytest.raises(RecordError, match="n1 GPU 0 being GPU-n1-0, and here it is GPU-other"):
        verify(placement(), tried((0.97, 0.97, 0.97), uuid="GPU-other"))


def test_too_few_runs_are_refused():
    with pytest.raises(
        RecordError, match=r"2 runs of .* are completed, expected 3 or more of each"
    ):
        verify(placement(), tried((0.97, 0.97)))


def test_runs_that_did_not_begin_block_by_block_have_an_interval_with_their_spread():
    # A drift of 1 % a block cancels within blocks, and not where blocks are mixed up.
    of = tried((0.97, 0.97, 0.97, 0.97))
    drifting = [
        dataclasses.replace(run, step_time_s=run.step_time_s * 1.01**run.run) for run in of.runs
    ]
    (time,) = verify(placement(), dataclasses.replace(of, runs=drifting))
    assert time.measured.high - time.measured.low == pytest.approx(0, abs=1e-9)
    mixed = [dataclasses.replace(run, started_unix_s=1e9 - run.run) for run in drifting]
    (time,) = verify(placement(), dataclasses.replace(of, runs=mixed))
    assert time.measured.high - time.measured.low > 0.02
    assert time.measured.estimate == pytest.approx(0.03)


def test_a_placement_is_read_as_it_was_written(tmp_path):
    wanted = placement()
    write_json(tmp_path / "placement.json", wanted)
    assert read_record(tmp_path / "placement.json", PlacementRecord) == wanted
