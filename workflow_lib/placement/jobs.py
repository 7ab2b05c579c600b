"""``triptych slots DIR``: slow and hot GPUs, by all jobs that were measured.

DIR has runs of ``triptych measure``, or those that ``triptych site`` left. A GPU is compared with
the others of its model in the same job, because jobs differ in load. Intervals are over jobs, and
hold for all GPUs at once.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from workflow_lib.intervals.differences import Interval, in_blocks
from workflow_lib.placement import text
from workflow_lib.records.files import read_measured
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.telemetry_columns import clock_mhz, is_at_work
from workflow_lib.words import counted

#: a GPU is named where its temperature is surely so far above others'
HOT_C = 5.0
#: the intervals of all GPUs together hold with this probability
COVERAGE = 0.9
_LEAST_JOBS = 3
#: GPUs on the terminal
_SHOWN = 20

#: code → why a job does not count
LEFT_OUT = {
    "damaged": "a file is damaged or missing; triptych audit names it",
    "older": "an earlier version summed it up, without what is needed here: triptych conclude "
    "sums it up again",
    "unfinished": "not summed up: it runs, or triptych conclude sums it up",
    "not_valid": "not valid",
    "no_pair": "no two GPUs of one model at work",
    "no_name": "no two GPUs at work that are known to be of one model: not all have a name",
}

#: a node, the index of the GPU in it, and the GPU's own identity
Slot = tuple[str, int, str]


class Fleet(NamedTuple):
    """What jobs say of GPUs."""

    #: in order of clocks, the slowest first; intervals are null with fewer than three jobs
    rows: list[dict[str, Any]]
    #: why jobs do not count, a key of LEFT_OUT → how many
    left_out: Counter[str]
    simulated: bool
    #: the share by which the clocks of those that are slow are below
    behind: float


def are_in(directory: Path) -> bool:
    """Whether a directory has measured jobs."""
    return any(directory.rglob(RunPaths(directory).measured.name))


def survey(directory: Path, behind: float) -> Fleet:
    """Compare the GPUs of all jobs below a directory. One is named whose clock is surely a share of
    ``behind`` below. Raises RecordError if there are none."""
    deviations: dict[Slot, list[tuple[float, float]]] = defaultdict(list)
    left_out: Counter[str] = Counter()
    simulated = False
    paths = sorted(directory.rglob(RunPaths(directory).measured.name))
    for path in paths:
        try:
            run = read_measured(path.parent)
            of_run = dict(_deviations(run))
        except KeyError:
            left_out["older"] += 1
            continue
        except (RecordError, OSError, ValueError, TypeError):
            left_out["damaged"] += 1
            continue
        simulated |= run["simulated"]
        if run["ended_unix_s"] is None:
            left_out["unfinished"] += 1
        elif run["invalid"]:
            left_out["not_valid"] += 1
        elif not of_run:
            left_out["no_pair" if all(gpu["name"] for gpu in run["gpus"]) else "no_name"] += 1
        else:
            for slot, deviation in of_run.items():
                deviations[slot].append(deviation)
    if not paths:
        raise RecordError(f"{directory} has no measured jobs; name the directory of triptych site")
    # Bonferroni's: each GPU has two intervals.
    coverage = 1 - (1 - COVERAGE) / max(1, 2 * len(deviations))
    rows = [_row(slot, values, coverage, behind) for slot, values in deviations.items()]
    rows.sort(key=lambda row: (row["clock_effect"], row["node"], row["gpu"]))
    return Fleet(rows, left_out, simulated, behind)


def _deviations(run: Mapping[str, Any]) -> Iterator[tuple[Slot, tuple[float, float]]]:
    """Each loaded GPU's clock, as the logarithm of its ratio to the mean of the others, and its
    temperature less theirs, in °C."""
    of_model: dict[str, list[tuple[Slot, float, float]]] = defaultdict(list)
    for gpu in run["gpus"]:
        slot = (gpu["node"], gpu["gpu"], gpu["uuid"] or "")
        clock, warmth = clock_mhz(gpu), gpu["temperature_mean_c"]
        # GPUs without a name may be of any models.
        if gpu["name"] and clock and warmth is not None and is_at_work(gpu):
            of_model[gpu["name"]].append((slot, clock, warmth))
    for alike in of_model.values():
        for slot, clock, warmth in alike:
            others = [other for other in alike if other[0] != slot]
            if others:
                ratio = clock / fmean(other[1] for other in others)
                yield slot, (math.log(ratio), warmth - fmean(other[2] for other in others))


def _row(
    slot: Slot, values: Sequence[tuple[float, float]], coverage: float, behind: float
) -> dict[str, Any]:
    clocks, temperatures = ([deviation[n] for deviation in values] for n in (0, 1))
    clock, warmth = _interval(clocks, coverage), _interval(temperatures, coverage)
    return {
        "node": slot[0],
        "gpu": slot[1],
        "gpu_uuid": slot[2],
        "jobs": len(values),
        "clock_effect": fmean(clocks),
        "clock_effect_low": clock and clock.low,
        "clock_effect_high": clock and clock.high,
        "temperature_effect_c": fmean(temperatures),
        "temperature_effect_low_c": warmth and warmth.low,
        "temperature_effect_high_c": warmth and warmth.high,
        "slow": clock and math.expm1(clock.high) < -behind,
        "hot": warmth and warmth.low > HOT_C,
    }


def _interval(values: Sequence[float], coverage: float) -> Interval | None:
    if len(values) < _LEAST_JOBS:
        return None
    return in_blocks(values, [0.0] * len(values), coverage)


def lines_of(fleet: Fleet) -> list[str]:
    """The table of the slowest GPUs, and sentences, for the terminal."""
    rows = [
        {
            "node": row["node"],
            "GPU": str(row["gpu"]),
            "jobs": str(row["jobs"]),
            "clock, %": _with_interval(row, "clock_effect", _percent),
            "warmer, °C": _with_interval(row, "temperature_effect", float, "_c"),
            "surely": " ".join(word for word in ("slow", "hot") if row[word]),
            "UUID": row["gpu_uuid"],
        }
        for row in fleet.rows[:_SHOWN]
    ]
    lines = ["SIMULATED: these are no measurements"] if fleet.simulated else []
    lines += [text.table(rows), ""] if rows else ["No job counted, so of no GPU anything is known"]
    if more := len(fleet.rows) - _SHOWN:
        lines += [f"{counted(more, 'more GPU')} not shown: --output has all"] if more > 0 else []
    ways = (
        ("slow", f"more than {100 * fleet.behind:g} % slower"),
        ("hot", f"more than {HOT_C:g} °C hotter"),
    )
    for word, how in ways if rows else ():
        named = [f"GPU {row['gpu']} on {row['node']}" for row in fleet.rows if row[word]]
        lines.append(
            f"{', '.join(named) or 'No GPU'} {'are' if len(named) > 1 else 'is'} surely {how} than "
            "those that ran with it"
        )
    few = sum(row["clock_effect_low"] is None for row in fleet.rows)
    if few:
        lines.append(f"{counted(few, 'GPU')} with fewer than {_LEAST_JOBS} jobs: no interval")
    lines += [f"{counted(n, 'job')} left out: {LEFT_OUT[why]}" for why, n in fleet.left_out.items()]
    return lines


def _percent(effect: float) -> float:
    """By how many percent a clock is above others, of the logarithm of their ratio."""
    return 100 * math.expm1(effect)


def _with_interval(
    row: Mapping[str, Any], name: str, shown: Callable[[float], float], unit: str = ""
) -> str:
    middle = f"{shown(row[name + unit]):+.1f}"
    low, high = row[f"{name}_low{unit}"], row[f"{name}_high{unit}"]
    if low is None:
        return middle
    return f"{middle} ({shown(low):+.1f} to {shown(high):+.1f})"
