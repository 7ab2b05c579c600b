"""What a measured command took: ``measured.json``, and ten lines for the terminal.

Energy, steps and validity are those of the auditor (workflow_lib.audit), from the files that the
samplers and the program's ranks left.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.audit import Audit, Curve, DamagedError, Files, Row, read_file
from workflow_lib.measure import record_steps
from workflow_lib.measure.log_steps import buffering, came_at_once, other_tokens
from workflow_lib.power_errors import LEAST_ERROR_SHARE
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import (
    BUSY_PERCENT,
    LEAST_THROTTLED_SHARE,
    THROTTLES,
    clock_mhz,
    is_at_work,
)
from workflow_lib.words import counted

#: rungs: how steps are seen
NO_STEPS, LOG, RECORDS, HOOK, CALLS = range(5)
RUNGS = (
    "the whole command",
    "lines of the log",
    "records of the trainer",
    "torch's optimizer hook",
    "triptych_steps in the code",
)
FORMAT = 1
#: a GPU lags if its clock is this share below the mean of all
_LAGS = 0.02
#: tokens of a step as told twice differ by less than this share
_SAME_TOKENS = 0.01


def step_files(directory: Path) -> tuple[int, list[str]]:
    """How steps were seen, at best, and the files that have them, by their names in the run."""
    steps = RunPaths(directory).steps
    for rung, pattern in ((CALLS, "rank*.csv"), (HOOK, "hook-rank*.csv")):
        if paths := sorted(steps.glob(pattern)):
            return rung, [f"steps/{path.name}" for path in paths]
    for rung, name in ((RECORDS, record_steps.FILE), (LOG, "log.csv")):
        path = steps / name
        if path.is_file() and path.read_bytes().count(b"\n") > 1:
            return rung, [f"steps/{name}"]
    return NO_STEPS, []


def nothing_told(program: str, **known: Any) -> dict[str, Any]:
    """What ``measured.json`` says without raw files; what is not ``known`` is null."""
    names = (
        *("job_id", "started_unix_s", "ended_unix_s", "exit_code", "signal"),
        *("warmup_steps", "tokens_per_step", "tokens", "records_end"),
    )
    return {"program": program, **dict.fromkeys(names), "limits": [], **known}


def unfinished(known: Mapping[str, Any]) -> dict[str, Any]:
    """``measured.json`` while the command runs. ``known`` is what is known without raw files."""
    nothing: dict[str, Any] = {"values": {}, "missing": {}, "invalid": [], "gpus": []}
    files = {"nodes": [], "simulated": False, "rung": NO_STEPS, "steps": []}
    return {"format": FORMAT, **files, **known, **nothing}


def covered_unix_s(paths: RunPaths) -> tuple[float, float]:
    """From when until when all nodes were sampled. Raises ValueError if there are no readings, and
    DamagedError."""
    starts, ends = [-math.inf], [math.inf]
    for node in paths.sampled_nodes():
        of_gpu: dict[str, list[float]] = {}
        for path in (paths.gpu_samples(node), paths.host_samples(node)):
            for row in _within(path, (0.0, math.inf)):
                # A row of a GPU without power covers nothing; those of the host have no power.
                if row.get("power_w", "no column"):
                    of_gpu.setdefault(row.get("gpu", ""), []).append(float(row["unix_time_s"]))
        starts += map(min, of_gpu.values())
        ends += map(max, of_gpu.values())
    if len(ends) == 1 or max(starts) > min(ends):
        raise ValueError("it has no readings")
    return max(starts), min(ends)


def read_json(path: Path) -> dict[str, Any]:
    """A record of JSON. Raises OSError and ValueError."""
    record: dict[str, Any] = json.loads(path.read_bytes())
    return record


def summarise(directory: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """The content of ``measured.json`` once the command has ended."""
    paths = RunPaths(directory)
    rung, files = step_files(directory)
    kept_back = buffering(paths.steps / "log.csv") if rung == LOG else ""
    if kept_back and came_at_once(paths.steps / "log.csv"):
        rung, files = NO_STEPS, []
    nodes = paths.sampled_nodes()
    starts = [json.loads(paths.telemetry_start(node).read_bytes()) for node in nodes]
    seen = {
        "nodes": nodes,
        "simulated": any(start["simulated"] for start in starts),
        "rung": rung,
        "steps": files,
    }
    record = {**unfinished(known), **seen}
    text = json.dumps(record)
    content = {paths.measured.name: text.encode()}
    read = functools.partial(read_file, directory)
    try:
        audit = Audit(Files(str(directory), lambda name: content.get(name) or read(name)))
    except (DamagedError, KeyError, TypeError, ValueError) as error:
        record["invalid"] = [str(error)]
        record["missing"] = dict.fromkeys(("energy_j", "step_time_s"), "damaged")
        return record
    record["values"] = audit.values
    record["invalid"] = list(dict.fromkeys(audit.invalid))
    record["invalid"] += filter(None, [kept_back])
    record["window_unix_s"] = list(audit.window)
    record["gpus"] = list(_gpus(directory, audit))
    if rung == CALLS and (why := _other_tokens(directory, files, known["tokens_per_step"])):
        record["invalid"].append(why)
    if rung == LOG:
        tokens_per_s = audit.values.get("tokens_per_s")
        why = other_tokens(paths.steps / "log.csv", tokens_per_s, len(record["gpus"]))
        record["invalid"] += filter(None, [why])
    record["missing"] = _missing(record, known)
    return record


def damage(directory: Path, known: Mapping[str, Any]) -> str:
    """Which file of a run that was summed up before cannot be read now; "" if all can."""
    for name in known["steps"]:
        whole = b"\n" in (read_file(directory, name) or b"")
        if not whole or name not in step_files(directory)[1]:
            return f"{directory / name} is missing or damaged"
    record = summarise(directory, known)
    return str(record["invalid"][0]) if "damaged" in record["missing"].values() else ""


def _other_tokens(directory: Path, files: Sequence[str], tokens_per_step: int | None) -> str:
    """Why the tokens of the command line are not those that the ranks told; "" if they are."""
    of_ranks = []
    for name in files:
        rows = _within(directory / name, (0.0, math.inf), "ended_unix_s")
        of_ranks.append([float(row["tokens"]) for row in rows if row["tokens"]])
    if tokens_per_step is None or not all(of_ranks):
        return ""
    total = sum(map(statistics.median, of_ranks))
    if abs(tokens_per_step - total) <= _SAME_TOKENS * total:
        return ""
    return (
        f"--tokens-per-step is {tokens_per_step:,}, and the calls in the code tell {total:,.0f} of "
        "all ranks together; leave one of them out"
    )


def _missing(record: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, str]:
    """Measure → the code of the reason why it is not known."""
    values = record["values"]
    missing = {}
    unseen = known.get("records_end") or "steps_not_seen"
    if "counted_steps" not in values:
        for name in ("counted_steps", "step_time_s", "energy_per_step_j"):
            missing[name] = unseen
    if "tokens_per_s" not in values:
        of_steps = known["tokens_per_step"] and "counted_steps" not in values
        why = unseen if of_steps else "tokens_not_told"
        if known["tokens"] and "counted_steps" in values:
            why = "tokens_of_the_command"
        for name in ("tokens_per_s", "energy_per_token_j"):
            missing[name] = why
    if "energy_j" not in values:
        why = "no_gpus" if not record["gpus"] else "energy_not_covered"
        for name in ("energy_j", "energy_integral_j", "power_mean_w"):
            missing[name] = why
        missing.setdefault("energy_per_token_j", why)
        missing.setdefault("energy_per_step_j", why)
    if "energy_error_share" not in values:
        missing["energy_error_share"] = missing.get("energy_j", "no_energy_counter")
    return missing


def _gpus(directory: Path, audit: Audit) -> Iterator[dict[str, Any]]:
    """Means of each GPU over the window; a value that no reading tells is null."""
    paths = RunPaths(directory)
    for node in sorted(audit.gpus):
        if not paths.telemetry_start(node).exists():
            continue
        start = json.loads(paths.telemetry_start(node).read_text(encoding="utf-8"))
        samples = _within(paths.gpu_samples(node), audit.window)
        counters = _within(paths.gpu_counters(node), audit.window)
        for gpu, entry in enumerate(start["gpus"]):
            own = [row for row in samples if row["gpu"] == str(gpu)]
            counted = [row for row in counters if row["gpu"] == str(gpu)]
            temperatures = _numbers(own, "temperature_c")
            yield {
                "node": node,
                "gpu": gpu,
                "uuid": entry.get("uuid"),
                "name": entry.get("name"),
                "power_limit_w": entry.get("power_limit_w"),
                "power_mean_w": _mean_over_time(own, "power_w"),
                "temperature_mean_c": _mean(temperatures),
                "temperature_max_c": max(temperatures, default=None),
                "sm_clock_mean_mhz": _mean(_numbers(own, "sm_clock_mhz")),
                "sm_clock_at_work_mhz": _mean(list(_clocks_at_work(own))),
                "utilisation_mean_percent": _mean(_numbers(own, "utilisation_percent")),
                "throttle_shares": _throttle_shares(counted),
            }


def _throttle_shares(counted: Sequence[Row]) -> dict[str, float]:
    """Counter of THROTTLES → the share of the time in which it grew, where known. NVIDIA's counter
    of the power cap counts thermal slowdown as well, so that it tells nothing beside heat."""
    shares = {
        name: share for name in THROTTLES if (share := _growth_share(counted, name)) is not None
    }
    heat = shares.get("throttle_sw_thermal_s", 0.0) + shares.get("throttle_hw_thermal_s", 0.0)
    if heat >= LEAST_THROTTLED_SHARE:
        shares.pop("throttle_power_cap_s", None)
    return shares


def _within(path: Path, window: Sequence[float], column: str = "unix_time_s") -> list[Row]:
    """The rows of a file with times in a window, without a torn last one. Raises DamagedError."""
    files = Files(str(path.parent), functools.partial(read_file, path.parent))
    rows = files.rows(path.name) or []
    return [row for row in rows if window[0] <= float(row[column] or math.nan) <= window[1]]


def _numbers(rows: Sequence[Mapping[str, str]], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row.get(column)]


def _clocks_at_work(rows: Sequence[Mapping[str, str]]) -> Iterator[float]:
    """The clocks that were read while kernels ran, by the utilisation that was read last."""
    busy = False
    for row in rows:
        if percent := row.get("utilisation_percent"):
            busy = float(percent) >= BUSY_PERCENT
        if busy and row.get("sm_clock_mhz"):
            yield float(row["sm_clock_mhz"])


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _mean_over_time(rows: Sequence[Row], column: str) -> float | None:
    """The mean between the first and the last reading, which may be any time apart."""
    read = [(float(row["unix_time_s"]), float(row[column])) for row in rows if row.get(column)]
    if not read or read[-1][0] <= read[0][0]:
        return _mean([value for _, value in read])
    curve = Curve(read)
    return curve.joules[-1] / (curve.times[-1] - curve.times[0])


def _growth_share(rows: Sequence[Mapping[str, str]], counter: str) -> float | None:
    """By which share of the time a counter of seconds grew."""
    known = [row for row in rows if row.get(counter)]
    if len(known) < 2:
        return None
    first, last = known[0], known[-1]
    apart_s = float(last["unix_time_s"]) - float(first["unix_time_s"])
    if apart_s <= 0:
        return None
    # The counter is read a little after the time of its row, so that it may seem to grow faster.
    return min(1.0, (float(last[counter]) - float(first[counter])) / apart_s)


def lines_of(record: Mapping[str, Any], directory: Path) -> list[str]:
    """Ten lines at most, for the terminal."""
    values, gpus = record["values"], record["gpus"]
    lines = [_time_line(record)]
    if record["invalid"]:
        lines.append(f"NOT VALID {record['invalid'][0]}")
        if more := len(record["invalid"]) - 1:
            lines.append(f"          and {more} more: see measured.json")
    if record["simulated"]:
        lines.append("GPUs      SIMULATED: these are no measurements")
    if record["invalid"]:
        lines.append(
            "energy    and what else was counted is in measured.json, for nobody to rely on"
        )
    else:
        lines += _cost_lines(record)
    if gpus:
        lines += _gpu_lines(gpus)
    if values.get("energy_j") is not None and not record["invalid"]:
        share = values.get("energy_error_share")
        by = "power alone, of one GPU at least" if share is None else "the energy counters"
        if share is not None and share > LEAST_ERROR_SHARE:
            by += f", ±{100 * share:.1f} % where power differs: the load is in step with the sensor"
        failed = "; the command failed" if record.get("exit_code") or record.get("signal") else ""
        lines.append(f"valid     telemetry covers all of it; the energy is by {by}{failed}")
    lines += [f"but       {LIMITS[code]}" for code in record.get("limits", ())]
    lines.append(f"files     {directory}")
    return lines


#: code of ``limits`` → what such a recording cannot tell
LIMITS = {
    "cut_off": "its end was not recorded, so this is summed up to its last reading",
    "readings_far_apart": "readings are more than 1 s apart: what changes faster is not seen",
    "times_assumed": "the recording has no times: they were counted from what you said",
    "means_of_windows": "power is a mean over each window: what changes within is not seen",
}
_WHY = {
    **record_steps.WHY,
    "steps_not_seen": "no steps were seen",
    "tokens_not_told": "give --tokens-per-step or --tokens",
    "tokens_of_the_command": "--tokens is of the whole command; its steps need --tokens-per-step",
    "no_gpus": "no GPUs were seen; --simulate 1 tries this without any",
    "energy_not_covered": "telemetry does not cover all of it",
    "no_energy_counter": "no energy counter stands for it",
    "damaged": "a file is damaged",
}


def _cost_lines(record: Mapping[str, Any]) -> list[str]:
    """The energy of a run, and what of it a token and a step cost."""
    values, missing = record["values"], record["missing"]
    if (energy_j := values.get("energy_j")) is None:
        energy = f"not known: {_WHY[missing['energy_j']]}"
    else:
        energy = (
            f"{_si(energy_j, 'J')} in {values['measured_duration_s']:.1f} s, "
            f"{values['power_mean_w']:.1f} W, of {counted(len(record['gpus']), 'GPU')} on "
            f"{counted(len(record['nodes']), 'node')}, by their own sensors"
        )
    per = []
    if (token_j := values.get("energy_per_token_j")) is not None:
        per.append(f"{token_j:.4g} J/token")
    if (tokens_per_s := values.get("tokens_per_s")) is not None:
        per.append(f"{tokens_per_s:,.0f} tokens/s")
    if (step_j := values.get("energy_per_step_j")) is not None:
        per.append(f"{step_j:.4g} J/step")
    if "tokens_per_s" in missing:
        per.append(f"J/token not known: {_WHY[missing['tokens_per_s']]}")
    return [f"energy    {energy}", *([f"cost      {', '.join(per)}"] if per else [])]


def _time_line(record: Mapping[str, Any]) -> str:
    values = record["values"]
    whole_s = record["ended_unix_s"] - record["started_unix_s"]
    line = f"time      {whole_s:.1f} s"
    if (steps := values.get("counted_steps")) and not record["invalid"]:
        line += (
            f", of which {steps} steps in {values['measured_duration_s']:.1f} s count, with a "
            f"median of {values['step_time_s']:.4g} s (by {RUNGS[record['rung']]})"
        )
    if record.get("signal"):
        return f"{line}; signal {record['signal']} ended the command"
    return f"{line}; exit code {record['exit_code']}" if record.get("exit_code") else line


def _gpu_lines(gpus: Sequence[Mapping[str, Any]]) -> list[str]:
    temperatures = [gpu["temperature_max_c"] for gpu in gpus if gpu["temperature_max_c"]]
    lines = []
    if temperatures:
        hottest = max(gpus, key=lambda gpu: gpu["temperature_max_c"] or -math.inf)
        lines.append(f"heat      up to {max(temperatures):g} °C ({_place(hottest)})")
    throttled = []
    for name, word in THROTTLES.items():
        shares = [gpu["throttle_shares"][name] for gpu in gpus if name in gpu["throttle_shares"]]
        if shares and max(shares) >= LEAST_THROTTLED_SHARE:
            throttled.append(f"{word} {100 * statistics.fmean(shares):.1f} % of the time")
    unknown = sum(not gpu["throttle_shares"] for gpu in gpus)
    none = "never, by the driver's counters"
    if unknown:
        none = f"not known: no counters of it, of {counted(unknown, 'GPU')}"
    lines.append("throttled " + (", ".join(throttled) or none))
    clocks = [clock for gpu in gpus if (clock := clock_mhz(gpu))]
    idle = sum(not is_at_work(gpu) for gpu in gpus)
    if len(gpus) > 1 and idle:
        lines.append(f"lags      not told: {counted(idle, 'GPU')} had hardly anything to do")
    elif len(clocks) > 1 and len(clocks) == len(gpus):
        slowest = min(gpus, key=lambda gpu: clock_mhz(gpu) or math.inf)
        below = 1 - min(clocks) / statistics.fmean(clocks)
        lines.append(
            f"lags      {_place(slowest)}: its clock is {100 * below:.1f} % below the mean"
            if below >= _LAGS
            else f"lags      none: each clock is within {100 * _LAGS:g} % of the mean"
        )
    return lines


def _place(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu['gpu']} on {gpu['node']}, {gpu['uuid']}"


def _si(value: float, unit: str) -> str:
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
