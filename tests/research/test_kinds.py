"""Kinds of questions, and how far their intervals reach."""

import math
import random
from dataclasses import replace

import pytest

from research.projection import calibration
from research.projection.layouts import assumed_chunks, usable
from research.projection.metrics import clopper_pearson
from research.projection.predicting import published_row
from research.projection.reading import PUBLISHED, read_published
from research.projection.splits import untuned
from tests.research.published_rows import runs_of
from workflow_lib.feasibility import INTERVAL_KINDS
from workflow_lib.projection import hierarchical_fit, kinds, step_model
from workflow_lib.projection.kinds import Group, Widths

FOLDING = "MoE Parallel Folding (Megatron-Core), Table 3"
#: kind → the share of rows that 90 % intervals hold, of groups that have no part in them
HELD = {
    "stack": (0.93, 542),
    "site": (0.91, 277),
    "release": (0.81, 73),
    "layout": (0.925, 461),
    "series": (0.90, 105),
    "depth": (0.97, 36),
    "untuned": (0.90, 460),
    "untuned-pipeline": (0.84, 980),
    "untuned-stack": (0.925, 460),
    "untuned-stack-pipeline": (0.91, 980),
}


def test_ends_are_quantiles_of_each_side():
    # Of 39 rows and one more, 5 % are 2: the second from below, and from above.
    distances = [-3.0, -1.0, *[0.5] * 35, 7.0, 90.0]
    found = Widths.of("layout", [Group.of("layout", "one", distances[:19])])
    assert found.ends[0.9] == (-3.0, 0.5)
    many = [Group("layout", str(n), 1, (value,)) for n, value in enumerate(distances)]
    widths = Widths.of("layout", many)
    # Half of them: the 30th of 40 from either side. An end is never on the other side of a median.
    assert (widths.ends[0.9], widths.ends[0.5]) == ((-1.0, 7.0), (0.0, 0.5))
    ends = (2 * math.exp(-0.1), 2 * math.exp(0.7))
    assert widths.interval(2.0, 0.1, 0.9) == pytest.approx(ends)


def test_an_interval_of_runs_that_are_often_slower_holds_nine_in_ten():
    # 1 + an exponential of mean 0.5, in logarithms of mean 0 otherwise: quantiles are known.
    draw = random.Random(1)
    groups = [
        Group.of("layout", str(n), [draw.expovariate(2.0) for _ in range(19)]) for n in range(40)
    ]
    low, high = Widths.of("layout", groups).ends[0.9]
    assert low == pytest.approx(0, abs=0.03)
    # −ln(0.05) / 2 = 1.498
    assert high == pytest.approx(1.498, rel=0.1)


def test_a_kind_of_few_groups_is_as_wide_as_any_tuned_one():
    few = kinds.enough(Widths.of("own", [Group.of("own", "a", [0.1])]))
    assert not few.enough
    assert "too few" in few.description
    for name in ("stack", "site", "release", "layout", "series"):
        known = kinds.widths(name)
        assert known.enough
        assert few.ends[0.9][0] <= known.ends[0.9][0]
        assert few.ends[0.9][1] >= known.ends[0.9][1]
    # Two of its five groups are of more than two rows.
    assert not kinds.widths("depth").enough


@pytest.mark.parametrize(
    ("unseen", "untuned_", "pipeline", "expected"),
    [
        ((), False, True, "series"),
        (("series", "fabric"), False, True, "depth"),
        (("layer", "stage", "series", "fabric"), False, False, "layout"),
        (("release", "layer"), False, False, "release"),
        (("site", "host", "fabric"), False, False, "site"),
        (("stack", "release", "site"), False, False, "stack"),
        (("layer",), True, False, "untuned"),
        (("layer", "site"), True, True, "untuned-pipeline"),
        (("stack",), True, True, "untuned-stack-pipeline"),
    ],
)
def test_the_kind_follows_from_what_was_never_seen(unseen, untuned_, pipeline, expected):
    assert kinds.kind(unseen, untuned_, pipeline) == expected
    assert expected in INTERVAL_KINDS


def test_a_source_of_three_layouts_of_one_thing_did_not_choose(tmp_path):
    runs = runs_of(
        tmp_path,
        *({"source": "A sweep", "tp": tp, "virtual_pp": ""} for tp in (1, 2, 4)),
        *({"source": "A table", "tp": tp} for tp in (2, 4)),
    )
    assert untuned(runs) == {"A sweep"}
    # It compares frameworks, and states too little to be predicted.
    shipped = untuned(read_published(PUBLISHED)[0])
    assert shipped == {FOLDING}


@pytest.mark.parametrize("kind", HELD)
def test_what_intervals_hold_of_groups_that_were_left_out(kind):
    held, rows = calibration.coverage(kind, 0.9)
    assert (held / rows, rows) == (pytest.approx(HELD[kind][0], abs=0.005), HELD[kind][1])


def test_ends_of_tuned_rows_hold_few_rows_that_nobody_tuned_and_the_others_are_slower():
    tuned = kinds.widths("layout").ends[0.9]
    rows = held = slower = 0.0
    for each in kinds.groups():
        if each.kind == "untuned-stack-pipeline":
            share = each.rows / len(each.distances)
            rows += each.rows
            held += share * sum(tuned[0] <= value <= tuned[1] for value in each.distances)
            slower += share * sum(value > tuned[1] for value in each.distances)
    assert held / rows == pytest.approx(0.40, abs=0.02)
    assert slower / (rows - held) > 0.85


def test_shipped_distances_are_those_of_shipped_rows():
    known = {(each.kind, each.name): each for each in kinds.groups()}
    found = calibration.measured(["twin"])
    assert found
    for each in found:
        assert known[each.kind, each.name].distances == pytest.approx(each.distances, abs=0.01)


def test_one_outlier_hardly_moves_its_family():
    """NVIDIA's BF16 rows of Grok-1 and Llama 3.1 405B, one of which takes a quarter less."""
    runs, _ = read_published(PUBLISHED)
    layouts, _ = usable(runs, assumed_chunks(runs))
    models = ("Grok-1 314B", "Llama 3.1 405B")
    family = [
        run
        for run in runs
        if run.line in layouts and run.step_time_s and run.precision == "BF16"
        if run.stack == "NVIDIA dgxc-benchmarking" and run.model in models
    ]
    rows = [published_row(run, layouts[run.line]) for run in family]
    assert len(rows) > 20

    def predicted(fitted):
        found = hierarchical_fit.fit(step_model.PROBLEM, fitted).predict(rows)
        return [each.log_s for each in found]

    outlier = len(rows) // 2
    before = predicted(rows)
    moved = replace(rows[outlier], time_s=rows[outlier].time_s * 15.9 / 21.0)
    after = predicted([*rows[:outlier], moved, *rows[outlier + 1 :]])
    moves = [abs(a - b) for a, b in zip(after, before, strict=True)]
    assert max(moves[:outlier] + moves[outlier + 1 :]) < 0.01


def test_clopper_and_pearson():
    # 0 of 4: 1 − 0.025^(1/4); all of 4 mirrored. 12 of 13 by R's binom.test.
    assert clopper_pearson(0, 4) == pytest.approx((0, 1 - 0.025**0.25))
    assert clopper_pearson(4, 4) == pytest.approx((0.025**0.25, 1))
    assert clopper_pearson(12, 13) == pytest.approx((0.6397, 0.9981), abs=1e-4)
