"""The summary in words: what is best, how sure that is, what failed."""

from __future__ import annotations

from typing import Any

from workflow_lib.records import Degrees
from workflow_lib.report.page.failures import failures
from workflow_lib.report.page.summary import Group, groups

from .full_matrix import cell_row, identity

Three = tuple[float, float, float]


def cell(name: str, outcome: str = "completed", **values: Any) -> dict[str, Any]:
    """A measured cell; its label is its name."""
    simulated = values.pop("simulated", False)
    runs = values.pop("runs", 3)
    of = {key: values.pop(key) for key in ("platform", "workload") if key in values}
    known = identity(of.get("platform", "h200"), "gpt3", Degrees(tp=2, pp=2, dp=2))
    known |= {"cell": name, **of}
    row = cell_row(known, outcome, **values)
    return row | {"simulated": simulated, "completed": runs if outcome == "completed" else 0}


def told(*cells: dict[str, Any]) -> list[Group]:
    return groups(cells, {each["cell"]: each["cell"] for each in cells})


def fastest(*cells: dict[str, Any]) -> str:
    (group,) = told(*cells)
    answer = group.answers[0]
    assert answer.question == "Fastest"
    return f"{answer.label} {answer.value} {answer.rest}"


def test_the_best_has_its_interval_and_the_next_is_named_where_none_overlaps() -> None:
    assert fastest(
        cell("a", tokens_per_s=(100.0, 90.0, 110.0)),
        cell("b", tokens_per_s=(200.0, 190.0, 210.0)),
        cell("c", tokens_per_s=(150.0, 140.0, 160.0)),
    ) == (
        "b 200 tokens/s (190–210) Next is c, 150 tokens/s (140–160); "
        "no other cell's interval overlaps."
    )


def test_cells_whose_intervals_overlap_are_not_told_apart_nearest_first() -> None:
    low: Three = (80.0, 70.0, 191.0)
    text = fastest(
        cell("a", tokens_per_s=low),
        cell("b", tokens_per_s=(200.0, 190.0, 210.0)),
        cell("c", tokens_per_s=(150.0, 140.0, 190.0)),
        cell("d", tokens_per_s=(160.0, 150.0, 170.0)),
    )
    assert text.endswith("Not told apart from c, a: their intervals overlap.")
    many = [cell(f"x{n}", tokens_per_s=(200.0 - n, 150.0, 210.0)) for n in range(6)]
    assert "from x1, x2, x3 and 2 more:" in fastest(*many)


def test_of_one_run_nothing_is_claimed() -> None:
    one = cell("a", runs=1, tokens_per_s=200.0)
    other = cell("b", tokens_per_s=(100.0, 90.0, 110.0))
    assert "order is uncertain" in fastest(one, other)
    best = cell("c", tokens_per_s=(300.0, 290.0, 310.0))
    assert "1 other cell has one run and no interval" in fastest(best, one, other)


def test_coolest_is_the_lowest_and_a_missing_value_is_counted() -> None:
    (group,) = told(
        cell("a", temperature_mean_c=(60.0, 59.0, 61.0)),
        cell("b", temperature_mean_c=(50.0, 49.0, 51.0)),
        cell("c"),
    )
    (coolest,) = (each for each in group.answers if each.question == "Coolest (mean)")
    assert (coolest.label, coolest.value) == ("b", "50.0 °C (49.0–51.0)")
    assert coolest.rest.endswith("1 completed cell lacks this measure.")
    (energy,) = (each for each in group.answers if each.question == "Most tokens per joule")
    assert energy.cell is None
    assert energy.rest == "no completed cell has this measure."


def test_simulated_cells_are_not_ranked_with_measured_ones_nor_platforms_or_workloads() -> None:
    names = [
        group.name
        for group in told(
            cell("a"),
            cell("b", simulated=True),
            cell("c", platform="h100"),
            cell("d", workload="lora"),
        )
    ]
    assert names == [
        "gpt3 on h100",
        "gpt3 on h200, pretrain, measured",
        "gpt3 on h200, pretrain, simulated GPU readings",
        "gpt3 on h200, lora",
    ]


def test_throttling_names_the_worst_cell_and_what_none_had() -> None:
    (group,) = told(
        cell("a", throttle_power_share=(0.5, 0.4, 0.6), throttle_thermal_share=0.0),
        cell("b", throttle_power_share=(0.2, 0.1, 0.3), throttle_thermal_share=0.0),
    )
    assert group.throttled == (
        "2 of 2 cells at the power cap, most of all a, 50.0 % of time (40.0–60.0); "
        "none in thermal slowdown"
    )


def test_failures_are_counted_by_outcome_with_the_most_frequent_cause() -> None:
    cells = [cell("a"), cell("b", "infeasible") | {"cause": "needs 214 GB."}]
    fates = [
        ("a", "completed", "fine"),
        ("a", "timeout", "slow"),
        ("a", "timeout", "slow"),
        ("c", "timeout", "slower"),
        ("c", "out_of_memory", "rank 3"),
        ("d", "out_of_memory", None),
        ("b", "infeasible", "needs 214 GB."),
    ]
    runs = [{"cell": c, "outcome": outcome, "cause": cause} for c, outcome, cause in fates]
    assert [(each.counted, each.outcome, each.cause) for each in failures(cells, runs)] == [
        ("1 cell", "infeasible", "needs 214 GB"),
        ("3 runs of 2 cells", "timeout", "most often (2 of 3) slow"),
        (
            "2 runs of 2 cells",
            "out of memory",
            "2 different causes, one of them: no cause was recorded",
        ),
    ]


def test_profiled_runs_that_did_not_complete_are_counted_apart() -> None:
    ends = {"a": "completed", "b": "not_run", "c": "not_run", "d": None}
    cells = [
        cell(name) | {"profiled_outcome": end, "profiled_cause": end and "the run has not ended"}
        for name, end in ends.items()
    ]
    (fate,) = failures(cells, [{"cell": "a", "outcome": "completed", "cause": "fine"}])
    assert (fate.counted, fate.outcome, fate.cause) == (
        "2 profiled runs of 2 cells",
        "not run",
        "the run has not ended",
    )
