"""The summary in words: what is best, how sure that is, what failed."""

from __future__ import annotations

from typing import Any

from workflow_lib.comparison.sides import Side
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.measures import MEASURES
from workflow_lib.report.missing import failures
from workflow_lib.report.summary import Answer, Group, groups

from .full_matrix import cell_row, identity, run_row

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


def told(
    *cells: dict[str, Any],
    of_gpus: dict[str, dict[str, float]] | None = None,
    of_blocks: dict[str, Three] | None = None,
) -> list[Group]:
    """The answers, by runs in blocks of which each value's three are the lowest, the median and the
    highest; ``of_gpus`` has the power of each GPU of cells, in W, and ``of_blocks`` the throughput
    of the runs of cells that have other ones."""
    runs, gpus, power_w = [], {}, {}
    for each in cells:
        powers = (of_gpus or {}).get(each["cell"], {"GPU-1": 700.0})
        for block in range(each["completed"]):
            key = each["cell"], block + 1
            ends = ("_low", "", "_high")[block]
            measures = {m: each[m + ends] for m in MEASURES if each.get(m) is not None}
            if of_blocks and each["cell"] in of_blocks:
                measures["tokens_per_s"] = of_blocks[each["cell"]][block]
            began = {"order_seed": 1, "order_block": block + 1, "started_unix_s": 1e9 + 100 * block}
            measures |= {"power_per_gpu_mean_w": sum(powers.values()) / 8}
            runs.append(run_row(each, block + 1, **measures, **began) | {"sensors": "nvidia"})
            runs[-1] |= {"simulated": each["simulated"]}
            gpus[key] = frozenset(powers)
            power_w[key] = {u: {"power_mean_w": w, "power_peak_w": w} for u, w in powers.items()}
    side = Side("made", "made", cells, tuple(runs), gpus, power_w=power_w)
    return groups(cells, {each["cell"]: each["cell"] for each in cells}, side)


def answer(question: str, *cells: dict[str, Any], **more: Any) -> Answer:
    (group,) = told(*cells, **more)
    return next(each for each in group.answers if each.question == question)


def test_a_cell_of_two_runs_is_not_among_those_that_the_best_is_not_told_from():
    best = cell("b", tokens_per_s=(200.0, 199.0, 201.0))
    near = cell("a", tokens_per_s=(199.0, 197.0, 203.0))
    few = cell("c", runs=2, tokens_per_s=(100.0, 99.8, 100.2))
    with_near, alone = answer("Fastest", best, near, few), answer("Fastest", best, few)
    assert (with_near.rivals, with_near.rest.endswith("on c.")) == (1, True)
    assert (alone.rivals, " on c." in alone.rest) == (1, False)


def test_the_best_is_named_if_the_comparison_tells_it_from_all_others():
    found = answer(
        "Fastest",
        cell("a", tokens_per_s=(100.0, 99.8, 100.2)),
        cell("b", tokens_per_s=(200.0, 199.0, 201.0)),
        cell("c", tokens_per_s=(150.0, 149.5, 150.5)),
    )
    assert (found.label, found.rivals, found.shortest) == ("b", 0, "200 tokens/s")
    # Logarithms of the ratios of blocks: 0.286009, 0.287682 and 0.289339, of which Student's
    # interval is 0.287677 ± 4.303·0.0009613.
    assert "c, 150 tokens/s (150–150): +33 to +34 %" in found.rest


def test_cells_that_no_comparison_tells_apart_are_named_nearest_first():
    rates = {"a": (191.0, 150.0, 240.0), "b": (200.0, 199.0, 201.0), "c": (199.0, 201.0, 198.0)}
    found = answer("Fastest", *(cell(name, tokens_per_s=rate) for name, rate in rates.items()))
    assert (found.label, found.rivals, found.shortest) == ("b", 2, "not told apart")
    assert " c, a: " in found.rest
    many = [cell(f"x{n}", tokens_per_s=(200.0 - n, 150.0, 240.0)) for n in range(6)]
    assert " x1, x2, x3 and 2 more: " in answer("Fastest", *many).rest


def test_the_leader_is_whom_the_comparison_tells_to_be_better_not_the_best_median():
    # By medians a is ahead; a pair of runs on one host is one block, and b is ahead in each.
    cells = [cell("a", tokens_per_s=(120.0, 100.0, 130.0)), cell("b", tokens_per_s=(1.0, 1.0, 1.0))]
    found = answer("Fastest", *cells, of_blocks={"b": (110.0, 132.0, 143.0)})
    assert (found.label, found.rivals) == ("b", 0)


def test_joules_per_token_stand_beside_tokens_per_joule():
    cells = [
        cell("a", tokens_per_j=(1.0, 0.999, 1.001), energy_per_token_j=1.0),
        cell("b", tokens_per_j=(2.0, 1.999, 2.001), energy_per_token_j=0.5),
    ]
    found = answer("Most tokens per joule", *cells)
    assert (found.shortest, found.beside) == ("2.00 tokens/J", "0.500 J/token")
    assert found.value == f"{found.shortest} (2.00–2.00) or {found.beside}"
    assert "1.00 tokens/J (0.999–1.00) or 1.00 J/token" in found.rest


def test_of_one_run_nothing_is_claimed():
    one = cell("a", runs=1, tokens_per_s=(200.0, 200.0, 200.0))
    found = answer("Fastest", one, cell("b", tokens_per_s=(100.0, 99.0, 101.0)))
    assert (found.label, found.rivals) == ("a", 1)
    assert "1 against 3 runs" in found.rest


def test_ranges_that_do_not_overlap_name_no_winner_where_sensors_may_be_off_by_more():
    # Tokens of a joule differ by 5 %; with one pair of GPUs this is told, and with another not.
    tokens = {"a": (1.0, 0.999, 1.001), "b": (1.05, 1.049, 1.051)}
    cells = [cell(name, tokens_per_j=value) for name, value in tokens.items()]
    alike = {"GPU-1": 690.0, "GPU-2": 690.0}
    question = "Most tokens per joule"
    same = answer(question, *cells, of_gpus={"a": alike, "b": {"GPU-1": 620.0, "GPU-2": 560.0}})
    assert (same.label, same.rivals) == ("b", 0)
    other = answer(question, *cells, of_gpus={"a": alike, "b": {"GPU-3": 620.0, "GPU-4": 560.0}})
    assert (other.label, other.rivals, other.shortest) == ("b", 1, "not told apart")


def test_coolest_is_the_lowest_and_a_missing_value_is_counted():
    cells = (
        cell("a", temperature_mean_c=(60.0, 59.0, 61.0)),
        cell("b", temperature_mean_c=(50.0, 49.0, 51.0)),
        cell("c"),
    )
    coolest = answer("Coolest (mean)", *cells)
    assert (coolest.label, coolest.value) == ("b", "50.0 °C (49.0–51.0)")
    assert "1 completed cell lacks" in coolest.rest
    energy = answer("Most tokens per joule", *cells)
    assert energy.cell is None
    assert "no completed cell" in energy.rest


def test_simulated_cells_are_not_ranked_with_measured_ones_nor_platforms_or_workloads():
    names = [
        group.name
        for group in told(
            cell("a"),
            cell("b", simulated=True),
            cell("c", platform="h100"),
            cell("d", workload="lora"),
        )
    ]
    parts = [name.removeprefix("gpt3 on ").split(", ") for name in names]
    assert [part[:2] for part in parts] == [
        ["h100"],
        ["h200", "pretrain"],
        ["h200", "pretrain"],
        ["h200", "lora"],
    ]
    assert parts[1][2] == "measured"
    assert "simulated" in parts[2][2]


def test_throttling_names_the_worst_cell_and_what_none_had():
    (group,) = told(
        cell("a", throttle_power_share=(0.5, 0.4, 0.6), throttle_thermal_share=0.0),
        cell("b", throttle_power_share=(0.2, 0.1, 0.3), throttle_thermal_share=0.0),
    )
    capped, thermal = group.throttled.split("; ")
    assert capped.startswith("2 of 2 cells")
    assert " a, 50.0 % of time (40.0–60.0)" in capped
    assert thermal.startswith("none ")


def test_failures_are_counted_by_outcome_with_the_most_frequent_cause():
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
    found = failures(cells, runs)
    assert [(each.counted, each.outcome) for each in found] == [
        ("1 cell", "infeasible"),
        ("3 runs of 2 cells", "timeout"),
        ("2 runs of 2 cells", "out of memory"),
    ]
    needs, most, different = (each.cause for each in found)
    assert needs == "needs 214 GB"
    assert "(2 of 3) slow" in most
    assert different.startswith("2 different causes")


def test_profiled_runs_that_did_not_complete_are_counted_apart():
    ends = {"a": "completed", "b": "not_run", "c": "not_run", "d": None}
    cells = [
        cell(name) | {"profiled_outcome": end, "profiled_cause": end and "not ended"}
        for name, end in ends.items()
    ]
    (fate,) = failures(cells, [{"cell": "a", "outcome": "completed", "cause": "fine"}])
    assert fate.counted.startswith("2 profiled runs")
    assert (fate.outcome, fate.cause) == ("not run", "not ended")
