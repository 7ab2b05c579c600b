"""Times of exchanges and of the optimiser alone, as ``research/parts_on_gpus.py`` records them.

``data/own_parts.jsonl`` has the records of evidence/engine/parts-*.jsonl, from which ``python -m
docs.evidence --write`` makes it. Without that file nothing was measured alone.

Lines through times of parts that were measured alone: latency + bytes over a rate.

A line is fitted for each collective, number of ranks and model of GPU. All sizes count alike: the
sum of squared relative residuals is least. Small messages take another protocol, so if a size is
far from the line, the smallest sizes are left out, one after the other, and the line says nothing
of smaller calls. If a size is still far from it, the line is refused with the reason, and then the
part has no measured rate.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tabulate import tabulate

from workflow_lib.intervals.students_t import quantile
from workflow_lib.projection.machines import published_machine
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError

SHIPPED = Path(str(resources.files("workflow_lib.projection") / "data" / "own_parts.jsonl"))

OPTIMISER = "optimiser"
#: collectives as the benchmark names them
EXCHANGES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send/recv")


#: A line is refused if a size took this share more or less than it says.
MOST_OFF = 0.25
#: with fewer sizes nothing tells a line from a curve
_LEAST_SIZES = 4
#: of the intervals: both sides together leave out a tenth
_ONE_SIDED = 0.95

#: model of GPU, part, ranks
Key = tuple[str, str, int]


@dataclass(frozen=True)
class PartTime:
    """An exchange of one size, or the optimiser over so many weights, timed alone."""

    #: the model of GPU, as own runs name it
    gpu: str
    #: one of EXCHANGES, or OPTIMISER
    part: str
    #: ranks of a group; 1 of the optimiser
    ranks: int
    #: what a rank receives; of the optimiser what it reads and writes, as parts.py counts it
    bytes: float
    #: medians over repeats of the slowest rank's seconds, and the shortest and longest repeat
    seconds: float
    least_s: float
    most_s: float
    repeats: int


def read_parts(path: Path = SHIPPED) -> tuple[PartTime, ...]:
    """The times that the benchmark's ``--output`` recorded; none if the shipped file is not there.

    Raises FileNotFoundError, or RecordError.
    """
    if path == SHIPPED and not path.exists():
        return ()
    times = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: is not text in UTF-8: {error}; measure it again") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                times.append(_part_time(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise RecordError(
                    f"{path}, line {number}: is no record of research/parts_on_gpus.py "
                    f"({type(error).__name__}: {error}); measure it again"
                ) from None
    return tuple(times)


def _part_time(record: Mapping[str, Any]) -> PartTime:
    name = str(record["gpu"])
    machine = published_machine(name.removeprefix("NVIDIA "))
    if machine is None:
        raise ValueError(f"the peaks of {name} are not known")
    if record["part"] == "collective":
        part, ranks, size = record["collective"], record["ranks"], record["received_bytes"]
        times = record["repeats_s"]
    else:
        part, ranks, size = record["part"], 1, record["bytes"]
        times = [sum(both) for both in zip(record["clip_s"], record["step_s"], strict=True)]
    if part not in (*EXCHANGES, OPTIMISER):
        raise ValueError(f"the part is {part!r}")
    seconds = [_above_0(time) for time in times]
    return PartTime(
        gpu=machine.gpu,
        part=part,
        ranks=int(_above_0(ranks)),
        bytes=_above_0(size),
        seconds=median(seconds),
        least_s=min(seconds),
        most_s=max(seconds),
        repeats=len(seconds),
    )


def _above_0(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and 0 < number <= bounds.QUANTITY.most):
        raise ValueError(f"{value!r} is not a number above 0")
    return number


@dataclass(frozen=True)
class Line:
    """A fitted line, with 90 % intervals (low, high) and the residual of each time."""

    latency_s: float
    latency_interval_s: tuple[float, float]
    bytes_per_s: float
    bytes_per_s_interval: tuple[float, float]
    #: what each size took over what the line says, less 1; of those from ``least_bytes`` on
    residuals: tuple[float, ...]
    #: the size from which on it holds; 0 if it holds for all sizes
    least_bytes: float = 0.0

    def seconds(self, total_bytes: float, calls: float) -> float:
        """Of so many calls that move ``total_bytes`` together."""
        return calls * self.latency_s + total_bytes / self.bytes_per_s


def fit_line(times: Sequence[PartTime]) -> Line:
    """Fit to times of several sizes, if need be without the smallest. Raises RecordError if there
    are too few, or one is far off."""
    sizes = sorted({time.bytes for time in times})
    if len(sizes) < _LEAST_SIZES:
        raise RecordError(f"{len(sizes)} sizes, and a line needs {_LEAST_SIZES}")
    refused = None
    for least in sizes[: len(sizes) - _LEAST_SIZES + 1]:
        try:
            line = _fit_all([time for time in times if time.bytes >= least])
        except RecordError as error:
            refused = refused or error
        else:
            return line if refused is None else replace(line, least_bytes=least)
    assert refused is not None
    raise refused


def _fit_all(times: Sequence[PartTime]) -> Line:
    sizes = np.array([time.bytes for time in times])
    seconds = np.array([time.seconds for time in times])
    design = np.stack([1 / seconds, sizes / seconds], axis=1)
    # Scaled, because bytes are a thousand million times seconds.
    scale = np.linalg.norm(design, axis=0)
    unit = np.ones(len(times))
    solved = np.linalg.lstsq(design / scale, unit, rcond=None)[0] / scale
    latency_s, s_per_byte = solved.tolist()
    squares = float(((design @ solved - unit) ** 2).sum())
    inverse = np.linalg.inv((design / scale).T @ (design / scale)) / np.outer(scale, scale)
    degrees = len(times) - 2
    reach = quantile(degrees, _ONE_SIDED) * np.sqrt(squares / degrees * np.diag(inverse))
    latency_reach, byte_reach = reach.tolist()
    latency = (max(0.0, latency_s - latency_reach), max(0.0, latency_s + latency_reach))
    if latency_s < 0:  # no call takes less than nothing: the best line is through the origin
        latency_s = 0.0
        s_per_byte = float(design[:, 1].sum() / (design[:, 1] ** 2).sum())
    if s_per_byte <= 0:
        raise RecordError("times do not grow with sizes")
    residuals = seconds / (latency_s + sizes * s_per_byte) - 1
    worst = int(np.abs(residuals).argmax())
    if abs(residuals[worst]) > MOST_OFF:
        raise RecordError(
            f"{sizes[worst] / 2**20:.4g} MiB took {1 + residuals[worst]:.2f} times what a line "
            f"says, more than {MOST_OFF:.0%} off"
        )
    slowest = s_per_byte + byte_reach
    fastest = s_per_byte - byte_reach
    return Line(
        latency_s=latency_s,
        latency_interval_s=latency,
        bytes_per_s=1 / s_per_byte,
        bytes_per_s_interval=(1 / slowest, 1 / fastest if fastest > 0 else math.inf),
        residuals=tuple(residuals.tolist()),
    )


@dataclass(frozen=True)
class Rates:
    """Measured times, with a line for each part and number of ranks."""

    times: tuple[PartTime, ...]

    @functools.cached_property
    def groups(self) -> Mapping[Key, tuple[PartTime, ...]]:
        """The times of each line, from the smallest size to the largest."""
        groups: dict[Key, list[PartTime]] = {}
        for time in sorted(self.times, key=lambda time: time.bytes):
            groups.setdefault((time.gpu, time.part, time.ranks), []).append(time)
        return {key: tuple(groups[key]) for key in sorted(groups)}

    @functools.cached_property
    def _fitted(self) -> tuple[Mapping[Key, Line], Mapping[Key, str]]:
        lines, refused = {}, {}
        for key, times in self.groups.items():
            try:
                lines[key] = fit_line(times)
            except RecordError as error:
                refused[key] = str(error)
        return lines, refused

    @property
    def lines(self) -> Mapping[Key, Line]:
        """The lines that were accepted."""
        return self._fitted[0]

    @property
    def refused(self) -> Mapping[Key, str]:
        """Why a line was not accepted."""
        return self._fitted[1]

    def seconds(
        self, gpu: str, part: str, ranks: int, calls: float, total_bytes: float
    ) -> float | None:
        """Of so many calls that move ``total_bytes`` together; None if there is no line, or none
        for such small calls."""
        line = self.lines.get((gpu, part, ranks))
        if line is None or total_bytes / calls < line.least_bytes:
            return None
        return line.seconds(total_bytes, calls)


def describe(rates: Rates) -> str:
    """The lines as a table, and what was refused."""
    rows = [
        {
            "part": part,
            "GPU": gpu,
            "ranks": ranks,
            "sizes": len(line.residuals),
            "from MiB": f"{line.least_bytes / 2**20:.3g}" if line.least_bytes else "all",
            "latency/µs (90 %)": _shown(line.latency_s, line.latency_interval_s, 1e6),
            "GB/s (90 %)": _shown(line.bytes_per_s, line.bytes_per_s_interval, 1e-9),
            "largest residual": f"{max(line.residuals, key=abs):+.1%}",
        }
        for (gpu, part, ranks), line in rates.lines.items()
    ]
    refused = [
        f"Refused: {part} of {ranks} on {gpu}: {why}."
        for (gpu, part, ranks), why in rates.refused.items()
    ]
    table = tabulate(rows, headers="keys", disable_numparse=True, tablefmt="github")
    return "\n\n".join([*([table] if rows else []), *refused]) or "Nothing was measured alone."


def _shown(value: float, interval: tuple[float, float], factor: float) -> str:
    low, high = interval
    return f"{factor * value:.4g} ({factor * low:.4g} to {factor * high:.4g})"
