"""A run's measures from sensors: power, energy, temperature, clock and others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workflow_lib import gpu_models, power_errors
from workflow_lib.analysis import metrics
from workflow_lib.analysis.known import COMBINE, Known, Values, combined, known
from workflow_lib.analysis.nodes import Node
from workflow_lib.analysis.recordings import Recording
from workflow_lib.analysis.steps import Steps
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_if_there
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.nodes import CoolDown, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reasons import Reason


def sensor_values(nodes: Sequence[Node]) -> Values:
    """A run's measures that are the sum, mean or extreme of those of its GPUs or nodes.

    For power and energy, only GPUs that report the power of their package are combined.
    """
    gpus = [row for node in nodes for row in node.gpus]
    sensors = _power_sensors(nodes)
    orphan = gpu_without_sensor(nodes)
    values: Values = {}
    for measure in MEASURES.values():
        if not measure.over:
            continue
        combine = COMBINE[measure.over]
        if measure.level == "node":
            rows: Sequence[Mapping[str, Any]] = [node.row for node in nodes]
            values[measure.name] = combined(rows, measure.name, combine)
        elif measure.sensor == "power":
            values[measure.name] = combined(sensors, measure.name, combine, orphan)
        else:
            values[measure.name] = combined(gpus, measure.name, combine)
    return values


def power_values(
    cell: Cell, steps: Steps, of_steps: Values, energy: Known, nodes: Sequence[Node]
) -> Values:
    """The measures computed from the energy of all GPUs, and four others.

    ``of_steps`` are :func:`~workflow_lib.analysis.run_row.step_values`, ``energy`` is ``energy_j``.
    The others are ``energy_difference``, ``energy_error_share``, ``idle_power_w`` and
    ``temperature_spread_c``.
    """
    count = cell.degrees.world_size
    counted, step_time_s, rate = (
        of_steps[name][0] for name in ("counted_steps", "step_time_s", "tokens_per_s")
    )
    samples_per_s = rate / cell.model.sequence_length
    formulas: dict[str, Callable[[float], float]] = {
        "power_mean_w": lambda j: j / steps.window.duration_s,
        "power_per_gpu_mean_w": lambda j: j / steps.window.duration_s / count,
        "tokens_per_j": lambda j: steps.tokens / j,
        "energy_per_token_j": lambda j: j / steps.tokens,
        "energy_per_step_j": lambda j: j / counted,
        # Gonzalez and Horowitz, IEEE Journal of Solid-State Circuits 31(9), 1996; of a mean step.
        "energy_delay_product_js": lambda j: j / counted * step_time_s,
        # The efficiency of arXiv 2509.10371, of a mean step. Time counts twice in it.
        "samples_per_s_per_mj": lambda j: samples_per_s / (j / counted / 1e6),
    }
    energy_j, reason = energy
    if energy_j is not None and energy_j <= 0:
        energy_j, reason = None, Reason("not_positive", measure="energy_j", value=energy_j)
    tflops_per_s, no_flops = of_steps["model_tflops_per_s_per_gpu"]
    useful: Known = (None, no_flops or reason)
    if tflops_per_s is not None and energy_j is not None:
        flops = tflops_per_s * 1e12 * count * steps.window.duration_s
        useful = known(flops / energy_j)
    return {
        "model_flops_per_j": useful,
        **{
            name: known(None if energy_j is None else formula(energy_j), reason)
            for name, formula in formulas.items()
        },
        **_energy_differences(nodes),
        "idle_power_w": _idle_power_w(cell, nodes),
        "temperature_spread_c": _temperature_spread_c(nodes),
    }


def _power_sensors(nodes: Sequence[Node]) -> list[Mapping[str, Any]]:
    """The rows of GPUs that report the power of their package."""
    return [
        row for node in nodes for row in node.gpus if node.power_sensors[row["gpu"]] == row["gpu"]
    ]


def _energy_differences(nodes: Sequence[Node]) -> Values:
    """How far the integral of power is off the energy by counters, over all GPUs; and the error of
    the energies of all GPUs as a share of them."""
    rows, orphan = _power_sensors(nodes), gpu_without_sensor(nodes)
    names = ("energy_difference", "energy_error_share")
    reasons = [combined(rows, name, max, orphan) for name in names]
    if reasons[0][0] is None:
        return dict(zip(names, reasons, strict=True))
    energy_j = sum(row["energy_j"] for row in rows)
    integral_j = sum(row["energy_integral_j"] for row in rows)
    error_j = sum(row["energy_j"] * row["energy_error_share"] for row in rows)
    return {
        "energy_difference": (integral_j / energy_j - 1, ""),
        "energy_error_share": (error_j / energy_j, ""),
    }


def systematic_share(energy: Known, duration_s: float, nodes: Sequence[Node]) -> Known:
    """How far ``energy_j`` may be from the truth, by what is published of sensors of power: a share
    of the truth."""
    energy_j, reason = energy
    if energy_j is None:
        return None, reason
    sensors = _power_sensors(nodes)
    if any(row["simulated"] for row in sensors):
        return None, Reason("simulated_sensor_error")
    share = power_errors.largest_share(energy_j / duration_s, len(sensors))
    return known(share, Reason("within_offsets"))


def cool_down_s(paths: RunPaths, cell: Cell) -> Known:
    """How long the job waited for cool GPUs, in s, or None and why."""
    waited = read_if_there(paths.cool_down, CoolDown)
    if waited is not None:
        return waited.waited_s, ""
    if cell.telemetry.cool_down_to_c is None:
        return None, Reason("no_cool_down")
    return None, Reason("file_missing", file=paths.cool_down.name)


def _idle_power_w(cell: Cell, nodes: Sequence[Node]) -> Known:
    if orphan := gpu_without_sensor(nodes):
        return None, orphan
    if cell.telemetry.idle_baseline_s <= 0:
        return None, Reason("no_idle_baseline")
    return combined([node.row for node in nodes], "idle_power_w", sum)


def _temperature_spread_c(nodes: Sequence[Node]) -> Known:
    """The largest difference in mean temperature between two GPUs of one node, in °C."""
    spreads = [
        combined(node.gpus, "temperature_mean_c", lambda of_gpus: max(of_gpus) - min(of_gpus))
        for node in nodes
        if len(node.gpus) > 1
    ]
    if not spreads:
        return None, Reason("one_gpu_a_node")
    if missing := [reason for value, reason in spreads if value is None]:
        return None, missing[0]
    return max(value for value, _ in spreads), ""


#: (source of telemetry, power_source) → the readings that the peak is taken from. NVIDIA's models
#: differ in the time over which each is a mean.
_PEAK_SENSORS = {
    ("nvidia", "driver"): "driver's samples",
    ("nvidia", "readings"): "readings",
    ("amd", "readings"): "readings of AMD SMI, averaged over an unpublished time",
    ("simulated", "readings"): "simulated readings",
    ("simulated", "driver"): "simulated samples of the driver",
}


def peak_sensor(recordings: Sequence[Recording], nodes: Sequence[Node]) -> Known:
    """The kind of readings from which the run's peak power is taken, of every GPU that reports
    power."""
    of_nodes = {recording.node: recording.start for recording in recordings}
    kinds = {
        _peak_sensor(of_nodes[row["node"]], row)
        for node in nodes
        for row in node.gpus
        if row["power_source"] is not None
    }
    return known("; ".join(sorted(kinds)) or None, Reason("no_power_source"))


def _peak_sensor(start: TelemetryStart, row: Mapping[str, Any]) -> str:
    key = start.source, row["power_source"]
    sensor = _PEAK_SENSORS.get(key, f"{start.source}: {row['power_source']}")
    if start.source != "nvidia":
        return sensor
    name = str(start.gpus[row["gpu"]].get("name"))
    if row["power_source"] == "driver":
        model = gpu_models.of_device(name)
        if model is None or model.look_period_s is None:
            return f"{sensor} of {name}, an unknown time apart"
        return f"{sensor}, one look of the sensor every {1000 * model.look_period_s:g} ms"
    if row["power_window_s"] is None:
        return f"{sensor} of {name}, averaged over an unknown time"
    return f"{sensor}, each the mean of {row['power_window_s']:g} s"


def gpu_without_sensor(nodes: Sequence[Node]) -> Reason | None:
    """Describe a GPU whose package's power is reported by a GPU that no rank used; None if there is
    none."""
    for node in nodes:
        for row in node.gpus:
            sensor = node.power_sensors[row["gpu"]]
            if sensor not in node.power_sensors:
                return Reason(
                    "package_sensor_unused", node=row["node"], gpu=row["gpu"], sensor=sensor
                )
    return None


#: A reading is the mean power of about the last second (docs/explanation/measurement.md), so half a
#: second of each phase is counted in the next: a tenth of the shortest phase that has an energy.
SHORTEST_PHASE_S = 5.0


def generation_values(cell: Cell, steps: Steps, energy: Known, nodes: Sequence[Node]) -> Values:
    """The measures of inference; ``energy`` is the run's ``energy_j``. Empty if the cell generates
    nothing.

    The prefill chooses the first token of a sequence, so decode generates one token fewer than the
    cell asks for.
    """
    if not steps.phases:
        return {}
    training, model = cell.training, cell.model
    gpus, batch = cell.degrees.world_size, training.global_batch_size
    prompt = model.sequence_length - training.generated_tokens
    later = training.generated_tokens - 1

    prefill_s, decode_s = (
        metrics.median(window.duration_s for window in steps.phases[phase])
        for phase in ("prefill", "decode")
    )
    values: Values = {
        "prefill_time_s": known(prefill_s),
        "time_to_first_token_s": known(prefill_s),
        "prefill_tokens_per_s_per_gpu": known(batch * prompt / prefill_s / gpus),
        "prefill_energy_j": _energy_j(energy, nodes, "prefill", prefill_s),
    }
    if later == 0:
        reason = Reason("one_token_a_sequence")
        names = (
            *("decode_time_s", "decode_tokens_per_s_per_gpu", "time_per_output_token_s"),
            *("decode_energy_j", "decode_tokens_per_j", "decode_energy_per_token_j"),
        )
        return values | dict.fromkeys(names, (None, reason))
    decode_j, why = _energy_j(energy, nodes, "decode", decode_s)
    values |= {
        "decode_time_s": known(decode_s),
        "time_per_output_token_s": known(decode_s / later),
        "decode_tokens_per_s_per_gpu": known(batch * later / decode_s / gpus),
        "decode_energy_j": known(decode_j, why),
    }
    tokens = batch * later * len(steps.phases["decode"])
    if decode_j is not None and decode_j <= 0:
        decode_j, why = None, Reason("not_positive", measure="decode_energy_j", value=decode_j)
    return values | {
        "decode_tokens_per_j": known(None if decode_j is None else tokens / decode_j, why),
        "decode_energy_per_token_j": known(None if decode_j is None else decode_j / tokens, why),
    }


def _energy_j(energy: Known, nodes: Sequence[Node], phase: str, duration_s: float) -> Known:
    """The energy in one phase, in J, of all GPUs that report power. It is null where the run's
    energy is null, and where phases are too short to separate their power."""
    if duration_s < SHORTEST_PHASE_S:
        return None, (
            Reason(
                "phase_too_short",
                phase=phase,
                duration_s=duration_s,
                shortest_phase_s=SHORTEST_PHASE_S,
            )
        )
    if energy[0] is None:
        return energy
    return sum(node.phase_energy_j[phase] for node in nodes), ""
