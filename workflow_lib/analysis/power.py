"""A run's measures of power, energy, temperature and clock, from its nodes and their GPUs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workflow_lib.analysis import metrics
from workflow_lib.analysis.nodes import Known, Node
from workflow_lib.analysis.run_row import RunRow
from workflow_lib.analysis.steps import Steps
from workflow_lib.records import Cell, CoolDown, RunPaths, read_if_there

#: Against external meters, sensors of this kind have been found with gain errors of 5 to 6 %
#: (an A100 showed 0.954 of its power), each GPU its own: "Part-time Power Measurements:
#: nvidia-smi's Lack of Attention", arXiv 2312.02741. A source that is not here has no published
#: figure.
_SYSTEMATIC_SHARES: Mapping[str, float] = {"nvidia": 0.06}


def add_power(
    row: RunRow, paths: RunPaths, steps: Steps, nodes: Sequence[Node], sources: Sequence[str]
) -> None:
    """Set the measures of power and energy, summed over the GPUs that report power.

    ``sources`` are where the readings of each node came from. ``RunRow.add_steps`` has been called.
    """
    count = row.cell.degrees.world_size
    sensors = [
        gpu for node in nodes for gpu in node.rows if node.power_sensors[gpu["gpu"]] == gpu["gpu"]
    ]
    orphan = gpu_without_sensor(nodes)
    energy_j, reason = _combine(sensors, "energy_j", sum, orphan)
    counter_j, counter_reason = _combine(sensors, "energy_counter_j", sum, orphan)
    peak_w, peak_reason = _combine(sensors, "power_peak_w", max, orphan)
    row.set("energy_j", energy_j, reason)
    row.set("energy_counter_j", counter_j, counter_reason)
    row.set("power_peak_w", peak_w, peak_reason)
    _set_idle_power(row, nodes, orphan)
    derived: dict[str, Callable[[float], float]] = {
        "power_mean_w": lambda j: j / steps.window.duration_s,
        "power_per_gpu_mean_w": lambda j: j / steps.window.duration_s / count,
        "tokens_per_j": lambda j: steps.tokens / j,
        "energy_delay_product_js": lambda j: metrics.energy_delay_product_js(
            j, row.values["measured_steps"], row.values["step_time_s"]
        ),
        "samples_per_s_per_mj": lambda j: metrics.samples_per_s_per_mj(
            row.values["tokens_per_s"] / row.cell.model.sequence_length,
            j,
            row.values["measured_steps"],
        ),
    }
    if energy_j is not None and energy_j <= 0:
        energy_j, reason = None, f"energy_j is {energy_j}, by which nothing can be divided"
    for name, formula in derived.items():
        row.set(name, None if energy_j is None else formula(energy_j), reason)
    difference, reason = _energy_difference(nodes, sensors, orphan)
    row.set("energy_difference", difference, reason)
    row.set("energy_systematic_share", *_systematic_share(sources))
    row.set("cpu_energy_j", *_over_nodes([node.cpu_energy_j for node in nodes], sum))
    row.set("node_energy_j", *_over_nodes([node.node_energy_j for node in nodes], sum))
    row.set("sampler_cpu_share", *_over_nodes([node.sampler_cpu_share for node in nodes], max))
    row.set("cool_down_s", *cool_down_s(paths, row.cell))


def _energy_difference(
    nodes: Sequence[Node], sensors: Sequence[dict[str, Any]], orphan: str | None
) -> Known:
    """Counters over trapezoids, less 1, each GPU over the span of its own counter."""
    known, reason = _combine(sensors, "energy_difference", max, orphan)
    if known is None:
        return None, reason
    pairs = [pair for node in nodes for pair in node.compared_j.values()]
    return sum(counted for counted, _ in pairs) / sum(trapezoid for _, trapezoid in pairs) - 1, ""


def _systematic_share(sources: Sequence[str]) -> Known:
    for source in sources:
        if source == "simulated":
            return None, "simulated power has no sensor that could be wrong"
        if source not in _SYSTEMATIC_SHARES:
            return None, f"no error of these sensors ({source}) against a meter has been published"
    if not sources:
        return None, "no node has telemetry"
    return max(_SYSTEMATIC_SHARES[source] for source in sources), ""


def cool_down_s(paths: RunPaths, cell: Cell) -> Known:
    """How long the job waited for cool GPUs, in s, or None and why."""
    waited = read_if_there(paths.cool_down, CoolDown)
    if waited is not None:
        return waited.waited_s, ""
    if cell.telemetry.cool_down_to_c is None:
        return None, "the sweep's protocol has no cool_down"
    return None, f"{paths.cool_down.name} is missing"


def _over_nodes(figures: Sequence[Known], combine: Callable[[list[float]], float]) -> Known:
    """A figure over nodes, or None and the reason of the first node that lacks it."""
    for value, reason in figures:
        if value is None:
            return None, reason
    return combine([value for value, _ in figures if value is not None]), ""


def _set_idle_power(row: RunRow, nodes: Sequence[Node], orphan: str | None) -> None:
    total_w, reason = _over_nodes([node.idle_power_w for node in nodes], sum)
    reasons = [reason] if total_w is None else []
    if row.cell.telemetry.idle_baseline_s <= 0:
        reasons.insert(0, "the cell asks for no idle baseline (idle_baseline_s is 0)")
    if orphan:
        reasons.insert(0, orphan)
    row.set("idle_power_w", None if reasons else total_w, "".join(reasons[:1]))


def add_temperatures(row: RunRow, gpus: Sequence[dict[str, Any]]) -> None:
    """Set the measures of temperature, clock and throttling."""
    for name, combine in (
        ("temperature_mean_c", _mean),
        ("temperature_peak_c", max),
        ("sm_clock_mean_mhz", _mean),
        ("throttle_power_share", _mean),
        ("throttle_thermal_share", _mean),
        ("throttle_brake_share", _mean),
    ):
        row.set(name, *_combine(gpus, name, combine))
    by_node: dict[str, list[dict[str, Any]]] = {}
    for gpu in gpus:
        by_node.setdefault(gpu["node"], []).append(gpu)
    several = [of_node for of_node in by_node.values() if len(of_node) > 1]
    spreads = [_combine(of_node, "temperature_mean_c", metrics.spread) for of_node in several]
    if not spreads:
        row.set("temperature_spread_c", None, "no node has two GPUs to compare")
    elif missing := [reason for value, reason in spreads if value is None]:
        row.set("temperature_spread_c", None, missing[0])
    else:
        row.set("temperature_spread_c", max(value for value, _ in spreads if value is not None))


def gpu_without_sensor(nodes: Sequence[Node]) -> str | None:
    """Names a GPU whose package's power is reported by a GPU that no rank used, if there is one."""
    for node in nodes:
        for row in node.rows:
            sensor = node.power_sensors[row["gpu"]]
            if sensor not in node.power_sensors:
                return (
                    f"{row['node']} GPU {row['gpu']}: its package's power is reported by GPU "
                    f"{sensor}, unused here"
                )
    return None


def _combine(
    gpus: Sequence[dict[str, Any]],
    column: str,
    combine: Callable[[Sequence[float]], float],
    problem: str | None = None,
) -> Known:
    """A figure over GPUs, or None and the reason of the first GPU that lacks it."""
    if problem:
        return None, problem
    for gpu in gpus:
        if gpu[column] is None:
            reason = json.loads(gpu["missing_reasons"])[column]
            return None, f"{gpu['node']} GPU {gpu['gpu']}: {reason}"
    return combine([gpu[column] for gpu in gpus]), ""


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
