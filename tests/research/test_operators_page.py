"""The page of operators alone beside steps, from records and steps with known answers."""

import math
from dataclasses import replace

import polars as pl
import pytest

from research.pages import operators

#: burst in µs, for seconds in µs, W and MHz
PRODUCT = ("product, bf16", 8.0, 10.0, 600.0, 1500.0)


def record(name, shape, burst_us, call_us, power_w, clock_mhz):
    return {
        **{"name": name, "shape": shape, "burst_call_s": [2e-6 * burst_us, 1e-6 * burst_us]},
        **{"call_s": 1e-6 * call_us, "power_w": power_w, "sm_clock_mhz": clock_mhz},
    }


def known():
    """A product of each shape of bf16 as ``PRODUCT``, and the other operators at 500 W."""
    name, *numbers = PRODUCT
    records = [record(name, shape, *numbers) for shape in (*operators.LAYER, operators.HEAD)]
    others = {each for stand in operators.CLASSES.values() for each in stand} - {name}
    records += [record(each, "", 5.0, 5.0, 500.0, 1990.0) for each in sorted(others)]
    return operators.operators([*records, record(operators.NOTHING, "", 5.0, 5.0, 100.0, 2000.0)])


def test_two_turns_of_an_operator_are_one():
    turns = [record("copy", "2×3", 4.0, 5.0, 590.0, 1980.0)]
    turns.append(record("copy", "2×3", 6.0, 7.0, 610.0, 1960.0))
    (found,) = operators.operators(turns)
    assert found == operators.Operator(
        "copy",
        "2×3",
        pytest.approx(5e-6),
        pytest.approx(6e-6),
        600.0,
        1970.0,
        pytest.approx(610 / 590 - 1),
    )


def test_a_step_has_three_products_for_each_of_the_model():
    cell = {"precision": "bf16", "global_batch_size": 8, "micro_batch_size": 1, "dp": 2}
    # Four micro-batches of a GPU, three products for each of two layers' four and the head.
    found = operators.alone(known(), {**cell, "layers": 2})
    assert [count for count, _ in found["gemm"]] == [4 * 2 * 3] * 4 + [4 * 3]
    assert [count for count, _ in found["attention"]] == [4 * 2] * 2


def test_what_the_cap_costs_is_the_difference_to_bursts():
    cell = {"precision": "bf16", "global_batch_size": 8, "micro_batch_size": 1, "dp": 2}
    cell |= {"layers": 32, "gpus": 2, "trainer": "native"}
    # 1,548 products of 8 µs and 256 calls of attention of 5 µs.
    burst_s = 1548 * 8e-6, 256 * 5e-6
    kernel_s = {"gemm": 0.015, "attention": burst_s[1]}
    step = operators.Step("dp2", cell, 0.1, 600.0, {}, kernel_s, 0.0)
    ((_, *times, lost, returned),) = operators._lost([step], known(), 2000.0)
    assert times == ["15", "12", "15", "1", "1", "1"]
    assert lost == f"{100 * (0.015 - burst_s[0]) / 0.1:.1f} %"
    least, most = operators.raised(known()[0], known(), 2000.0)
    assert returned == f"{15 * least:.1f} to {15 * most:.1f} %"
    assert list(operators._lost([replace(step, cell={**cell, "layers": 4})], known(), 2000.0)) == []


def test_a_higher_cap_returns_what_clock_and_times_allow():
    product = known()[0]
    least, most = operators.raised(product, known(), 2000.0)
    # 660 W instead of 600 W, of which 100 W are of a GPU with nothing to do.
    above = 560 / 500
    elastic = math.log(10 / 8) / math.log(2000 / 1500)
    assert least == pytest.approx(1 - above ** (-elastic / 3))
    assert most == pytest.approx(1 - above ** (-1 / 2))


def test_joules_are_those_of_the_time_that_a_class_covers():
    cell = {"layers": 2, "gpus": 2}
    runs = [{"step_time_s": 1.0, "energy_per_step_j": 1160.0}]
    kinds = {"class": ["gemm", "memory"], "covered_s": [1.5, 1.0], "kernel_s": [1.6, 1.0]}
    # One rank and two steps: 2.0 s are computed, and 2.5 s covered by classes, so some twice.
    times = {"steps": [2], "computation_s": [1.8], "memory_s": [0.2], "span_s": [2.4]}
    times["bubble_s"] = [0.5]
    step = operators._step("dp1", cell, runs, pl.DataFrame(kinds), pl.DataFrame(times), known())
    watts = {"gemm": (600 * 5 + 500) / 6, "memory": 500.0}
    expected = {"gemm": 0.75 * 0.8 * watts["gemm"], "memory": 0.5 * 0.8 * watts["memory"]}
    rest = dict.fromkeys(operators.CLASSES.keys() - expected.keys(), 0.0)
    assert step.joules == pytest.approx({**expected, **rest, "waits": 0.2 * 100.0})
    assert step.kernel_s["gemm"] == pytest.approx(0.8)
    assert step.bubble_s == pytest.approx(0.25)
    # Of the second a quarter waits at 140 W.
    waits = record(operators.WAITS, "", 5.0, 5.0, 140.0, 2000.0)
    exchanges = operators.operators([waits])
    capped_j = 0.75 * watts["gemm"] + 0.25 * 140
    assert operators.capped_j(step, known(), exchanges) == pytest.approx(capped_j)
    *_, alone, capped, counted, off, _ = operators._energies(step, known(), exchanges)
    assert (alone, capped) == (f"{sum(step.joules.values()):,.0f}", f"{capped_j:,.0f}")
    assert counted == "580"
    assert off.startswith("−")
