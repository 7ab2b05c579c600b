"""``triptych audit PATH…``: energy, steps and validity of runs, again from their raw files.

A second opinion, written from docs/reference/contract.md and docs/explanation/measurement.md. It
uses none of the code that reduces runs, and only the standard library of Python 3.9, so a reader
can check an archive with this file alone. PATH is a run, a directory of runs, or an archive.

It reads the window of a run's measured steps, their tokens, each GPU's energy, and whether
telemetry covers all of it, and prints what the run's own records say otherwise.
"""

from __future__ import annotations

import argparse
import cmath
import contextlib
import csv
import functools
import hashlib
import io
import json
import math
import statistics
import sys
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

Record = Mapping[str, Any]
Row = dict[str, str]
Span = tuple[float, float]
Series = list[Span]
#: step → when each rank began and ended it, in s
Spans = dict[int, list[Span]]
#: an energy counter: when each value was renewed in s, by how much that may be off, and J
Counter = list[tuple[float, float, float]]

#: two values of one measure that are this close, as a share, are the same
SAME_SHARE = 1e-6
#: seconds without a reading of power within the window, or so many periods if that is longer
LONGEST_GAP_S, LONGEST_GAP_PERIODS = 1.0, 5
#: the counter and the integral of power may differ by this share, and by what a reading lags, over
#: this many seconds or more
COUNTER_SHARE, COUNTER_LAG_S, COUNTER_FROM_S = 0.05, 0.6, 10.0
#: the counter's readings nearest to the window's edges may be this far off them, as a share of the
#: window, and their times uncertain by this share of what is between them
OFF_SHARE, TIME_SHARE = 0.6, 0.006
#: a driver that renews its counter without telling when: every 0.1 s
RENEWAL_S = 0.1
#: power is taken as constant this long before its first and after its last reading
HELD_S = 1.0
#: a clock that gains more than this share was set in between
FASTEST_DRIFT = 500e-6
#: a node's clock may be off rank 0's by this share of a step
CLOCK_SHARE = 0.01
#: columns of time and power, each with its unit in s or W
Columns = tuple[str, float, str, float]
SAMPLES: Columns = ("unix_time_s", 1.0, "power_w", 1.0)
OF_DRIVER: Columns = ("driver_time_us", 1e-6, "power_mw", 1e-3)
#: measured.json's rung of a command whose steps are lines of its log. That is looked at every 20
#: ms, so a step's time is that of as many as last so long, to a hundredth
LOG_RUNG, LOG_BLOCK_S = 1, 2.0
#: what a run has: of a planned cell, or of a command that was measured
RECORDS = ("cell.json", "measured.json")
#: what no GPU draws: this many times its highest limit, or so much where none is told
IMPOSSIBLE_LIMITS, IMPOSSIBLE_W = 2.0, 10_000.0


class Energy(NamedTuple):
    """A GPU's energy over the window."""

    joules: float
    #: the integral of power alone, J
    integral: float
    #: what the two differ by, or 0 if the times of the counter's readings explain that, or what
    #: steps in step with the sensor make, if that is more; null without a counter
    error_share: float | None


class DamagedError(Exception):
    """A file is not what the contract says. The message names the file."""


class Files:
    """The files of one run: a directory's, or those below a prefix of an archive."""

    def __init__(self, name: str, read: Callable[[str], bytes | None]) -> None:
        """``read`` gives the bytes of a file by its name in the run, None if it is not there."""
        self.name = name
        self.read = read

    def record(self, name: str) -> dict[str, Any] | None:
        """A JSON object; None if there is no such file. Raises DamagedError."""
        if (content := self.read(name)) is None:
            return None
        try:
            value = json.loads(content)
        except ValueError as error:
            raise DamagedError(f"{name}: {error}") from None
        if not isinstance(value, dict):
            raise DamagedError(f"{name}: not an object")
        return value

    def rows(self, name: str) -> list[Row] | None:
        """The rows of a CSV file without a torn last line; None if there is no such file."""
        if (content := self.read(name)) is None:
            return None
        whole = content[: content.rfind(b"\n") + 1]
        try:
            lines = list(csv.reader(io.StringIO(whole.decode("ascii"), newline="")))
        except (UnicodeDecodeError, csv.Error) as error:
            raise DamagedError(f"{name}: {error}") from None
        for number, line in enumerate(lines, start=1):
            if len(line) != len(lines[0]):
                raise DamagedError(f"{name}, line {number}: {len(line)} fields of {len(lines[0])}")
        return [dict(zip(lines[0], line)) for line in lines[1:]]


def runs_below(path: Path) -> Iterator[Files]:
    """The runs of a directory or archive by name. Raises OSError; DamagedError for no ZIP."""
    if path.is_dir():
        for run in sorted(record.parent for name in RECORDS for record in path.rglob(name)):
            yield Files(str(run), functools.partial(read_file, run))
        return
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise DamagedError(f"{path}: {error}") from None
    with archive:
        names = sorted(name for name in archive.namelist() if name.rpartition("/")[2] in RECORDS)
        root = "".join(names[:1]).partition("/")[0]
        sums = (_read_member(archive, {}, f"{root}/", "manifest-sha256.txt") or b"").decode()
        stated = {name: of for of, _, name in (line.partition("  ") for line in sums.splitlines())}
        for name in names:
            prefix = name[: name.rindex("/") + 1]
            yield Files(prefix[:-1], functools.partial(_read_member, archive, stated, prefix))


def read_file(directory: Path, name: str) -> bytes | None:
    try:
        return (directory / name).read_bytes()
    except FileNotFoundError:
        return None


def _read_member(archive: zipfile.ZipFile, stated: Record, prefix: str, name: str) -> bytes | None:
    """A file of an archive, with the SHA-256 that its manifest states."""
    try:
        content = archive.read(prefix + name)
    except KeyError:
        return None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError, zlib.error) as error:
        raise DamagedError(f"{name}: {error}") from None
    place = f"{prefix}{name}".partition("/")[2]
    if stated and stated.get(place) != hashlib.sha256(content).hexdigest():
        raise DamagedError(f"{name} is not what the archive's manifest states")
    return content


def number(row: Mapping[str, str], column: str, where: str) -> float | None:
    """A field as a finite number; None if it is empty or the file has no such column."""
    if not (text := row.get(column, "")):
        return None
    with contextlib.suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise DamagedError(f"{where}: {column} is {text[:40]!r}")


def needed(row: Mapping[str, str], column: str, where: str) -> float:
    """As :func:`number`, of a field that no row may lack."""
    if (value := number(row, column, where)) is not None:
        return value
    raise DamagedError(f"{where}: {column} is missing")


class Curve:
    """Power over time, as straight lines between readings; its integral by the trapezoid rule."""

    def __init__(self, series: Series) -> None:
        """``series`` holds times in s and power in W, in order, and is not empty."""
        self.times = [time for time, _ in series]
        self.watts = [watt for _, watt in series]
        pairs = zip(series, series[1:])
        areas = ((t2 - t1) * (w1 + w2) / 2 for (t1, w1), (t2, w2) in pairs)
        self.joules = [0.0, *accumulate(areas)]

    def until(self, moment: float, held_s: float = 0.0) -> float | None:
        """Energy in J from the first reading to a moment; None beyond the readings, but for
        ``held_s`` during which power is taken as constant."""
        first, last = self.times[0], self.times[-1]
        if max(first - moment, moment - last) > held_s:
            return None
        if moment < first:
            return (moment - first) * self.watts[0]
        if moment >= last:
            return self.joules[-1] + (moment - last) * self.watts[-1]
        before = bisect_right(self.times, moment) - 1
        since = moment - self.times[before]
        step = self.times[before + 1] - self.times[before]
        slope = (self.watts[before + 1] - self.watts[before]) / step
        return self.joules[before] + since * (self.watts[before] + slope * since / 2)

    def between(self, start: float, end: float) -> float | None:
        """Energy in J over a span; None where readings do not reach its ends."""
        at_start, at_end = self.until(start), self.until(end)
        return None if at_start is None or at_end is None else at_end - at_start

    def longest_gap(self, start: float, end: float) -> float:
        """The longest time in s between two readings of which a part lies in a span."""
        pairs = zip(self.times, self.times[1:])
        return max((b - a for a, b in pairs if b > start and a < end), default=0.0)


class Clock:
    """How far a node's clock is ahead of rank 0's: it was compared twice, and drifts evenly."""

    def __init__(self, record: Record | None) -> None:
        """``record`` is ``steps/clock-<node>.json``; without one the clocks are taken as one."""
        comparison = record or {}
        self.error_s, self._slope, self._before = 0.0, 0.0, (0.0, 0.0)
        self.reason = str(comparison.get("reason") or "")
        if not (before := comparison.get("before")) or not (after := comparison.get("after")):
            return
        self._before = (before["unix_time_s"], before["ahead_s"])
        span_s = after["unix_time_s"] - before["unix_time_s"]
        gained_s = after["ahead_s"] - before["ahead_s"]
        self._slope = gained_s / span_s if span_s > 0 else 0.0
        errors_s = before["error_s"], after["error_s"]
        is_set = span_s <= 0 or abs(gained_s) > FASTEST_DRIFT * span_s + sum(errors_s)
        self.error_s = max(errors_s) + (abs(gained_s) if is_set else 0.0)

    def corrected(self, moment: float) -> float:
        """A time of the node's clock by rank 0's."""
        return moment - (self._before[1] + self._slope * (moment - self._before[0]))


class Audit:
    """One run, read again. :attr:`invalid` says why its telemetry does not hold, if it does not."""

    def __init__(self, files: Files) -> None:
        """Raises DamagedError, and KeyError or TypeError if a record lacks what it must have."""
        self.files = files
        self.invalid: list[str] = []
        #: measure → value, as a run's row in the tables has them
        self.values: dict[str, float] = {}
        self.tokens: float | None = None
        self._clocks: dict[str, Clock] = {}
        #: of each GPU that counts the driver's own samples of power; none if its readings disagree
        self.samples: list[Series] = []
        #: node → its ranks, whose GPUs count; None where all sampled ones do
        self.gpus: dict[str, list[Record] | None] = {}
        #: mean time between ends of steps, if there are two; and how far they share a phase of the
        #: sensor's looks, which all may where the end of each is not known to 1 ms
        self.step_s, self.together = math.nan, 1.0
        self.measured = files.record("measured.json")
        nothing: dict[str, Any] = {"training": {}, "hardware": {}, "telemetry": {}}
        self.cell = (files.record("cell.json") or {}) if self.measured is None else nothing
        # Inference reads tokens and writes them, which are not alike.
        self._trains = self.cell["training"].get("workload") != "inference"
        self._read_steps() if self.measured is None else self._read_measured(self.measured)
        self._read_energy()

    def _clock(self, node: str) -> Clock:
        if node not in self._clocks:
            self._clocks[node] = Clock(self.files.record(f"steps/clock-{node}.json"))
        return self._clocks[node]

    def _rows_of(self, name: str) -> list[Row]:
        if (rows := self.files.rows(name)) is None:
            raise DamagedError(f"{name} is missing")
        return rows

    def _steps_of(
        self, rows: list[Row], name: str, clock: Clock
    ) -> Iterator[tuple[int, Span, Row]]:
        """A rank's measured steps: number, begin and end by rank 0's clock, and row."""
        latest = -math.inf
        for row in rows:
            start, end = (needed(row, f"{at}_unix_s", name) for at in ("started", "ended"))
            if start < latest or end < start:
                self.invalid.append(f"{name}: the clock went backwards")
            latest = end
            if row["phase"] == "measured":
                span = (clock.corrected(start), clock.corrected(end))
                yield int(needed(row, "step", name)), span, row

    def _read_measured(self, measured: Record) -> None:
        """The steps of a command after its warm-up; all of the command where none are known."""
        if measured["ended_unix_s"] is None:
            raise DamagedError("measured.json has no end: sum it up with triptych conclude")
        self.gpus = dict.fromkeys(map(str, measured["nodes"]))
        self.window = (float(measured["started_unix_s"]), float(measured["ended_unix_s"]))
        spans: Spans = {}
        counts: dict[int, int] = {}
        tokens: dict[int, float] = {}
        anew = ""
        for name in measured["steps"]:
            rows = self._rows_of(name)
            anew = anew or _begins_anew(rows, name)
            for step, span, row in self._steps_of(rows, name, Clock(None)):
                spans.setdefault(step, []).append(span)
                counts[step] = int(number(row, "steps", name) or 1)
                told = number(row, "tokens", name)
                tokens[step] = tokens.get(step, 0) + (math.nan if told is None else told)
        # Of a step that not every rank has finished, nothing is known.
        steps = [step for step in sorted(spans) if len(spans[step]) == len(measured["steps"])]
        self.tokens = measured["tokens"]
        if any(max(spans[step])[0] > min(end for _, end in spans[step]) for step in steps):
            self.invalid.append(
                "a step ended in one process before it began in another: the command trained more "
                "than once, or the clocks of its nodes differ by more than a step"
            )
        if steps:
            self.invalid += filter(None, [anew])
            tokens_per_step = measured["tokens_per_step"]
            own = sum(
                tokens_per_step * counts[step] if tokens_per_step else tokens[step]
                for step in steps
            )
            self.tokens = None if math.isnan(own) else own
        self._read_window([spans[step] for step in steps], [counts[step] for step in steps])

    def _read_window(self, spans: Sequence[Sequence[Span]], counts: Sequence[int]) -> None:
        """Times of the steps: when each rank began and ended each, and for how many each stands."""
        edges = [(min(step)[0], max(end for _, end in step)) for step in spans]
        if edges:
            self.window = (min(edges)[0], max(end for _, end in edges))
            of_log = self.measured is not None and self.measured["rung"] == LOG_RUNG
            times = paces(edges, counts, LOG_BLOCK_S if of_log else 0.0)
            self.values.update(counted_steps=sum(counts), step_time_s=statistics.median(times))
            ends = [end for _, end in edges]
            if len(ends) > 1:
                self.step_s = (ends[-1] - ends[0]) / sum(counts[1:])
            if max(counts) == 1 and not of_log:
                self.together = _together(ends)
        duration_s = self.window[1] - self.window[0]
        if duration_s <= 0:
            raise DamagedError("what was measured ends before it begins")
        self.values["measured_duration_s"] = duration_s
        if self._trains and self.tokens:
            self.values["tokens_per_s"] = self.tokens / duration_s

    def _read_steps(self) -> None:
        degrees = self.cell["degrees"]
        sizes = [int(degrees.get(name, 1)) for name in ("tp", "pp", "dp", "cp")]
        training = self.cell["training"]
        first, count = int(training["warmup_steps"]), int(training["measured_steps"])
        spans: Spans = {}
        tokens: dict[Any, dict[int, float]] = {}
        places: dict[str, list[Record]] = {}
        for rank in range(math.prod(sizes)):
            if (record := self.files.record(f"steps/rank{rank}.json")) is None:
                raise DamagedError(f"steps/rank{rank}.json is missing")
            name, node = f"steps/rank{rank}.csv", str(record["node"])
            places.setdefault(node, []).append(record)
            replica = record.get("dp_rank")
            of_replica = tokens.setdefault(rank if replica is None else replica, {})
            measured = []
            for step, span, row in self._steps_of(self._rows_of(name), name, self._clock(node)):
                measured.append(step)
                spans.setdefault(step, []).append(span)
                of_replica[step] = needed(row, "tokens", name)
            if measured != list(range(first, first + count)):
                raise DamagedError(f"{name} has {len(measured)} of {count} measured steps")
        self.gpus.update(places)
        batch = training["global_batch_size"] * self.cell["model"]["sequence_length"]
        for step in spans:
            if (total := sum(counts.get(step, 0.0) for counts in tokens.values())) != batch:
                raise DamagedError(f"step {step} has {total:.0f} tokens, the batch has {batch}")
        self.tokens = float(batch * count)
        self._read_window([spans[step] for step in sorted(spans)], [1] * count)
        self._check_clocks(self.values["measured_duration_s"] / count, spans)

    def _check_clocks(self, step_s: float, spans: Spans) -> None:
        for node, clock in self._clocks.items():
            if clock.reason or clock.error_s > CLOCK_SHARE * step_s:
                why = clock.reason or f"{clock.error_s:.3g} s uncertain"
                self.invalid.append(f"clock of {node}: {why}")
        worst_s = max(clock.error_s for clock in self._clocks.values())
        # In inference replicas exchange nothing, so their steps are not one.
        apart_s = [max(span)[0] - min(end for _, end in span) for span in spans.values()]
        if self._trains and max(apart_s) > 2 * worst_s:
            self.invalid.append("a step ended on one rank before it began on another")

    def _read_energy(self) -> None:
        parts: list[Energy | None] = []
        for node, ranks in sorted(self.gpus.items()):
            if (start := self.files.record(f"telemetry/{node}.json")) is None:
                self.invalid.append(f"node {node} has no telemetry")
                parts.append(None)
                continue
            used: list[int | None] = list(range(len(start["gpus"])))
            if ranks is not None:
                used = [self._gpu_of(ranks, start, rank) for rank in ranks]
            if None in used:
                self.invalid.append(f"node {node}: a rank trained on a GPU that was not sampled")
            if start["simulated"] and any(rank.get("gpu_uuid") for rank in ranks or ()):
                self.invalid.append(f"node {node}: simulated readings of a run on GPUs")
            size = int(self.cell["hardware"].get("gpus_per_package", 1))
            # Of an MI250's two dies one tells the power of both.
            tells = [e.get("reports_power", n % size == 0) for n, e in enumerate(start["gpus"])]
            sensors = sorted({gpu for gpu in used if gpu is not None and tells[gpu]})
            parts += map(self._node(node, start, sensors).get, sensors)
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return
        energy_j = sum(part.joules for part in known)
        integral_j = sum(part.integral for part in known)
        self.values.update(energy_j=energy_j, energy_integral_j=integral_j)
        errors = [part.joules * part.error_share for part in known if part.error_share is not None]
        if len(errors) == len(known) and energy_j > 0:
            self.values["energy_error_share"] = sum(errors) / energy_j
        self.values["power_mean_w"] = energy_j / self.values["measured_duration_s"]
        if self._trains and self.tokens:
            self.values["energy_per_token_j"] = energy_j / self.tokens
        if self.measured is not None and (steps := self.values.get("counted_steps")):
            self.values["energy_per_step_j"] = energy_j / steps

    @staticmethod
    def _gpu_of(ranks: Sequence[Record], start: Record, rank: Record) -> int | None:
        """The sampled GPU that a rank trained on; on a CPU, the one of its place in the node."""
        entries = start["gpus"]
        for own, name in (("gpu_uuid", "uuid"), ("pci_address", "pci_bus_id")):
            stated = str(rank.get(own) or "").casefold()
            names = [str(entry.get(name) or "").casefold() for entry in entries]
            fitting = [place for place, known in enumerate(names) if stated and stated in known]
            if fitting or (stated and own == "gpu_uuid"):
                return fitting[0] if fitting else None
        gpu = rank.get("gpu")
        if gpu is None:
            gpu = sorted(record["rank"] for record in ranks).index(rank["rank"])
        return gpu if gpu < len(entries) else None

    def _node(self, node: str, start: Record, sensors: Sequence[int]) -> dict[int, Energy]:
        """GPU → its energy, where it is known."""
        clock = self._clock(node)
        name = f"telemetry/{node}.csv"
        if (rows := self.files.rows(name)) is None:
            self.invalid.append(f"{name} is missing")
            return {}
        limits = ("power_limit_max_w", "power_limit_default_w", "power_limit_w")
        most = [
            IMPOSSIBLE_LIMITS * max(float(entry.get(limit) or 0) for limit in limits)
            or IMPOSSIBLE_W
            for entry in start["gpus"]
        ]
        readings = _series(rows, name, SAMPLES, clock, most)
        path = f"telemetry/{node}-power.csv"
        of_driver = _series(self.files.rows(path) or [], path, OF_DRIVER, clock, most)
        counters = self._counters(node, start, clock)
        energies: dict[int, Energy] = {}
        # A run whose rates alternated has no energy.
        for gpu in () if self.cell["telemetry"].get("interleaved_rates_hz") else sensors:
            if not (series := readings.get(gpu)):
                self.invalid.append(f"{name}: GPU {gpu} has no power")
                continue
            curve = Curve(series)
            driver = [sample for sample in of_driver.get(gpu, []) if sample[0] >= curve.times[0]]
            self._check_power(name, gpu, curve, driver, float(start["sample_rate_hz"]))
            self.samples.append(driver if _agrees(curve, driver) else [])
            best = Curve(driver) if self.samples[-1] else curve
            # Of a short command the driver's samples may end before it does.
            if (integral := best.between(*self.window)) is None:
                best, integral = curve, curve.between(*self.window)
            share, off = self._share(best, counters.get(gpu, []), most[gpu]) or (None, 0.0)
            if integral is not None:
                error = None if share is None else abs(1 / share - 1)
                if error is not None:
                    in_step = 0.0 if start["simulated"] else self._in_step_share()
                    error = max(0.0 if error <= off else error, in_step)
                energies[gpu] = Energy(integral * (share or 1.0), integral, error)
            self._check_counter(node, gpu, curve, counters.get(gpu, []))
        return energies

    def _check_power(self, name: str, gpu: int, curve: Curve, driver: Series, hz: float) -> None:
        if curve.between(*self.window) is None:
            self.invalid.append(f"{name}: power of GPU {gpu} does not cover the measured steps")
            return
        longest_s = max(LONGEST_GAP_S, LONGEST_GAP_PERIODS / hz if hz else 0.0)
        if curve.longest_gap(*self.window) > longest_s:
            both = Curve(sorted([*zip(curve.times, curve.watts), *driver]))
            if both.longest_gap(*self.window) > longest_s:
                self.invalid.append(f"{name}: no power of GPU {gpu} for more than {longest_s:g} s")

    def _counters(self, node: str, start: Record, clock: Clock) -> dict[int, Counter]:
        """GPU → its energy counter: when the value was renewed, by how much that may be off, J."""
        name = f"telemetry/{node}-counters.csv"
        counters: dict[int, Counter] = {}
        for row in self.files.rows(name) or []:
            if (energy_j := number(row, "energy_j", name)) is None:
                continue
            read_s = clock.corrected(needed(row, "unix_time_s", name))
            if (age_s := number(row, "energy_age_s", name)) is None:
                age_s = RENEWAL_S if start["source"] == "nvidia" else 0.0
            gpu = int(needed(row, "gpu", name))
            counters.setdefault(gpu, []).append((read_s - age_s / 2, age_s / 2, energy_j))
        return counters

    def _share(self, curve: Curve, counter: Counter, most_w: float) -> Span | None:
        """The counter's energy over the integral of power, between its readings nearest to the
        window's edges, and by how much their times may put it off; None where the counter does not
        stand for the window."""
        start, end = self.window
        if not counter or _fell(counter, start, end):
            return None
        before = [reading for reading in counter if reading[0] <= start]
        within = [reading for reading in counter if start <= reading[0] <= end]
        after = [reading for reading in counter if reading[0] >= end]
        opening, closing = [*before[-1:], *within[:1]], [*within[-1:], *after[:1]]
        if not opening or not closing:
            return None
        first = min(opening, key=lambda reading: abs(reading[0] - start))
        last = min(closing, key=lambda reading: abs(reading[0] - end))
        if first[0] >= last[0]:
            if not before or not after:
                return None
            first, last = before[-1], after[0]
        apart_s = last[0] - first[0]
        off_s = abs(first[0] - start) + abs(last[0] - end)
        if off_s > OFF_SHARE * (end - start) or first[1] + last[1] > TIME_SHARE * apart_s:
            return None
        at_first, at_last = curve.until(first[0], HELD_S), curve.until(last[0], HELD_S)
        if at_first is None or at_last is None or at_last <= at_first or last[2] <= first[2]:
            return None
        counted_j = last[2] - first[2]
        if counted_j > most_w * apart_s:
            return None
        return counted_j / (at_last - at_first), (first[1] + last[1]) / apart_s

    def _in_step_share(self) -> float:
        """By how much the energy of the last GPU's samples may be off, because steps are in step
        with the sensor's looks, which are 20 ms apart: by 0.2 of power's swing and the looks a
        step, as far as steps end at one phase of the looks (the docs' in-step.md). 0 without
        samples that far apart."""
        start, end = self.window
        samples = [sample for sample in self.samples[-1] if start <= sample[0] <= end]
        if len(samples) < 2 or not self.step_s > 0:
            return 0.0
        if not 0.015 < (samples[-1][0] - samples[0][0]) / (len(samples) - 1) < 0.03:
            return 0.0
        watts = sorted(watt for _, watt in samples)
        swing_w = watts[-1 - len(watts) // 20] - watts[len(watts) // 20]
        mean_w = statistics.fmean(watts)
        return 0.2 * swing_w / mean_w * 0.02 / self.step_s * self.together if mean_w > 0 else 0.0

    def _check_counter(self, node: str, gpu: int, curve: Curve, counter: Counter) -> None:
        """The counter and the readings tell one energy, over the readings of it in the window."""
        start, end = self.window
        if _fell(counter, start, end):
            self.invalid.append(f"{node}: the energy counter of GPU {gpu} ran backwards")
            return
        within = [reading for reading in counter if start <= reading[0] + reading[1] <= end]
        if len(within) < 2 or within[-1][0] - within[0][0] < COUNTER_FROM_S:
            return
        span = (within[0][0] + within[0][1], within[-1][0] + within[-1][1])
        counted_j, integral_j = within[-1][2] - within[0][2], curve.between(*span)
        watts = [w for time, w in zip(curve.times, curve.watts) if span[0] <= time <= span[1]]
        if counted_j <= 0:
            self.invalid.append(f"{node}: the energy counter of GPU {gpu} stood still")
        elif integral_j is not None and watts:
            most_j = COUNTER_SHARE * counted_j + COUNTER_LAG_S * (max(watts) - min(watts))
            if abs(counted_j - integral_j) > most_j:
                differs = f"says {counted_j:.0f} J where power adds up to {integral_j:.0f} J"
                self.invalid.append(f"{node}: the energy counter of GPU {gpu} {differs}")


def paces(edges: Sequence[Span], counts: Sequence[int], least_s: float) -> list[float]:
    """Seconds a step, over blocks of steps that each last so long at least; over all of them where
    none does."""
    blocks, count, start = [], 0, edges[0][0]
    for (begun, end), steps in zip(edges, counts):
        start = begun if count == 0 else start
        count += steps
        if end - start >= least_s:
            blocks.append((end - start) / count)
            count = 0
    return blocks or [(edges[-1][1] - edges[0][0]) / sum(counts)]


def _series(
    rows: list[Row], name: str, columns: Columns, clock: Clock, most_w: Sequence[float]
) -> dict[int, Series]:
    """GPU → times of rank 0's clock in s and power in W; without what no GPU draws."""
    by_gpu: dict[int, Series] = {}
    time, unit_s, power, unit_w = columns
    for row in rows:
        watt = number(row, power, name)
        moment = clock.corrected(needed(row, time, name) * unit_s)
        gpu = int(needed(row, "gpu", name))
        if not 0 <= gpu < len(most_w):
            raise DamagedError(f"{name}: there is no GPU {gpu}")
        series = by_gpu.setdefault(gpu, [])
        if watt is None or watt * unit_w > most_w[gpu]:
            continue
        if series and moment < series[-1][0]:
            raise DamagedError(f"{name}: the clock went backwards")
        series.append((moment, watt * unit_w))
    return by_gpu


def _begins_anew(rows: list[Row], name: str) -> str:
    """Why the measured steps of a file do not follow each other; "" if they do."""
    ended = None
    for row in rows:
        step, count = int(needed(row, "step", name)), int(number(row, "steps", name) or 1)
        if ended is not None and step - count != ended:
            return (
                f"{name}: steps begin anew after step {ended}: the program began again, or the "
                "numbers are of something else as well, as of an evaluation"
            )
        if row["phase"] == "measured" or ended is not None:
            ended = step
    return ""


def _together(ends: Sequence[float]) -> float:
    """How far ends of steps share a phase of looks 20 ms apart, within each 10 s: 1 if all do."""
    of_blocks: dict[float, complex] = {}
    for moment in (end - ends[0] for end in ends):
        turned = cmath.exp(2j * math.pi * moment / 0.02)
        of_blocks[moment // 10] = of_blocks.get(moment // 10, 0) + turned
    return sum(map(abs, of_blocks.values())) / len(ends)


def _agrees(readings: Curve, driver: Series) -> bool:
    """Whether the driver's own samples have no gap and tell the power that the readings tell."""
    if len(driver) < 2:
        return False
    curve, (first, last) = Curve(driver), (readings.times[0], readings.times[-1])
    start, end = max(first, curve.times[0]), min(last, curve.times[-1])
    if end <= start or max(start - first, last - end) > HELD_S:
        return False
    of_readings, of_driver = readings.between(start, end) or 0, curve.between(start, end) or 0
    lag_j = COUNTER_LAG_S * (max(readings.watts) - min(readings.watts))
    is_close = abs(of_driver - of_readings) <= COUNTER_SHARE * of_readings + lag_j
    return is_close and curve.longest_gap(-math.inf, math.inf) <= LONGEST_GAP_S


def _fell(counter: Counter, start: float, end: float) -> bool:
    """Whether the counter ran backwards between two readings of the window, or right across it."""
    falls = ((a[0], b[0]) for a, b in zip(counter, counter[1:]) if b[2] < a[2])
    return any(a < end and b > start and (a >= start) == (b <= end) for a, b in falls)


def differences(audit: Audit) -> list[str]:
    """What a run's own records say otherwise, a sentence each."""
    measured = audit.measured or {"invalid": (), "values": None}
    sentences = [f"completed, but {why}" for why in audit.invalid if why not in measured["invalid"]]
    if (row := measured["values"]) is None:
        row = (audit.files.record("summary.json") or {"run": {}})["run"]
    if (stated := row.get("energy_j")) is not None and "energy_j" not in audit.values:
        sentences.append(f"energy_j is {stated:.9g}, and not known by the raw files")
    for name, value in audit.values.items():
        stated = row.get(name, value)
        whole = 1.0 if name.endswith("_share") else abs(value)
        if stated is None or abs(stated - value) > SAME_SHARE * whole:
            sentences.append(f"{name} is {stated}, and {value:.9g} by the raw files")
    return sentences


def audit_run(files: Files) -> tuple[Audit | None, list[str]]:
    """A run read again, and what differs; no audit if it is damaged, or has no result to audit."""
    try:
        if files.record("measured.json") is None:
            completed = (files.record("outcome.json") or {}).get("outcome") == "completed"
            if not completed or files.name.rpartition("/")[2] == "run0":  # which has no measures
                return None, []
        audit = Audit(files)
        return audit, differences(audit)
    except DamagedError as error:
        return None, [str(error)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return None, [f"a record is not as the contract has it: {type(error).__name__}: {error}"]


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="a run, runs, archives")
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych audit") -> int:
    """Audit the runs; returns the exit code: 1 if something differs, is damaged or is not there."""
    options = command_line(prog).parse_args(arguments)
    audited = skipped = wrong = unread = 0
    for path in options.paths:
        try:
            for files in runs_below(path):
                audit, sentences = audit_run(files)
                if audit is None and not sentences:
                    skipped += 1
                    continue
                audited, wrong = audited + 1, wrong + bool(sentences)
                energy = audit and audit.values.get("energy_per_token_j")
                shown = "J/token not known" if energy is None else f"{energy:.4g} J/token"
                print(f"{files.name}: {'; '.join(sentences) if sentences else f'agrees, {shown}'}")
        except (OSError, DamagedError) as error:
            print(f"triptych: {error}", file=sys.stderr)
            unread += 1
    print(
        f"{audited} runs audited, {wrong} differ; {skipped} without a completed result"
        + (f"; {unread} of the paths could not be read" if unread else "")
    )
    return int(wrong + unread > 0 or audited == 0)


if __name__ == "__main__":
    sys.exit(main())
