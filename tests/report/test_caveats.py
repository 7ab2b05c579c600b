"""Which cells a page names for loads in step with the sensor of power, for memory pressure and for
settings of the allocator."""

import pytest

from tests.comparison.sides import known, measured
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.reasons import Reason, missing
from workflow_lib.report.caveats import (
    allocators_set,
    capped_below_limit,
    energy_errors,
    short_memory,
    trained_otherwise,
)

from .pages import build
from .sweep import Planned

CELL = "tp2-pp16 (llama3-70b on h200)"


@pytest.mark.parametrize(
    ("shares", "told"),
    [
        ([0.0, 0.0021, 0.0076], "up to ±0.76 % in 2 of 3 runs"),
        ([0.0076], "up to ±0.76 %"),
        ([0.0, 0.0019, None], None),
    ],
)
def test_runs_above_a_fifth_of_a_percent_are_named(shares, told):
    cell, runs = measured(known(), energy_error_share=shares)
    found = energy_errors([cell], ["tp2-pp16"], runs)
    assert [each.partition(": ")[::2] for each in found] == ([] if told is None else [(CELL, told)])


def test_runs_under_pressure_are_counted_with_the_worst_of_them():
    cell, runs = measured(
        known(), allocator_retries=[0, 3, 1], allocator_frees=[0, 11, None],
        memory_pressure=[False, True, True],
    )  # fmt: skip
    (told,) = short_memory([cell], ["tp2-pp16"], runs)
    assert told.startswith(CELL)
    for part in ("3 allocations", "11 blocks", "2 of 3 runs"):
        assert part in told
    quiet, runs = measured(known(), memory_pressure=[False, None])
    assert short_memory([quiet], ["tp2-pp16"], runs) == ()


def test_why_bursts_are_not_known_is_what_completed_runs_say():
    cell, runs = measured(known(), throttle_power_share=[0.95] * 2, power_of_limit_share=[0.9] * 2)
    why = missing({"at_power_limit_share": Reason("never_at_limit")})
    failed = missing({"at_power_limit_share": Reason("not_completed", outcome="timeout")})
    runs = [{**runs[0], **failed, "outcome": "timeout"}, {**runs[1], **why}]
    (told,) = capped_below_limit([cell], ["tp2-pp16"], runs)
    assert "not known: power" in told


@pytest.mark.parametrize(
    ("losses", "named"),
    [
        # Two H200, 8 steps of Llama 3 8B: ZeRO-1, a faulty 2 and 3 of DeepSpeed, torch's 3.
        ([[12.465], [12.528], [12.462, 12.466], [12.463, 12.463]], ["b"]),
        # Repeats that differ as much say nothing of cells; nor does rounding.
        ([[12.044, 12.131], [12.217], [12.103]], []),
        ([[12.5801, 12.5801], [12.5812, 12.5812]], []),
        # Of two cells, neither is known to be the right one. Single runs may differ by chance.
        ([[12.46, 12.46], [12.58]], ["a", "b"]),
        ([[12.46], [12.58]], []),
        ([[None], [12.58]], []),
    ],
)
def test_cells_are_named_that_train_another_model_than_others(losses, named):
    cells, runs = [], []
    for name, of_cell in zip("abcd", losses, strict=False):
        cell, its_runs = measured({**known(), "cell": name}, loss_last=of_cell)
        cells.append(cell)
        runs += [{**run, "cell": name} for run in its_runs]
    told = trained_otherwise(cells, list("abcd")[: len(cells)], runs)
    assert [line[0] for line in told] == named
    # Another precision, or another recipe, is another training.
    cells = [{**cell, "fp8_recipe": cell["cell"]} for cell in cells]
    assert trained_otherwise(cells, [cell["cell"] for cell in cells], runs) == ()


def test_a_page_names_them_above_all(tmp_path):
    layouts = {"tp1-pp1-dp2": 12.46, "tp2-pp1-dp1": 12.46, "tp1-pp2-dp1": 12.53}
    twice = [Outcome.COMPLETED] * 2
    cells = [
        Planned(name, outcomes=twice, measures={"loss_last": loss})
        for name, loss in layouts.items()
    ]
    text = build(tmp_path, cells).text
    assert "12.530 nat" in text.partition('id="cells"')[0]


def test_settings_are_named_that_are_not_the_default_ones():
    other = "native; native, expandable_segments:True"
    cells = [{**known(), "allocator": text} for text in (None, "native", other)]
    (told,) = allocators_set(cells, ["a", "b", "tp2-pp16"])
    assert told == f"{CELL}: {other}"


def test_the_headline_of_a_cell_under_pressure_says_so(tmp_path):
    pressed = {
        "tokens_per_s": 50_000.0,
        "allocator_retries": 3,
        "allocator_frees": 11,
        "memory_pressure": True,
        "allocator": "native",
    }
    quiet = {"allocator_retries": 0, "allocator_frees": 0, "memory_pressure": False}
    cells = [Planned("tp1-pp1-dp2", measures=pressed), Planned("tp2-pp1-dp1", measures=quiet)]
    text = build(tmp_path, cells).text
    assert ": dp2 [memory pressure] " in text
    assert "tp2 [memory pressure]" not in text
    assert "dp2 [memory pressure] (gpt3" in text
