"""``triptych meter RUN_OR_SWEEP… --log FILE``: how far GPUs' sensors of power are off a meter.

Fits reading = (1 + gain) · power + offset, and prints what goes into ``config/meters.yaml``. Both
powers are means over windows of one load: a run's idle baseline and its measured steps. The line is
that of least squares, with Student's 95 % interval. The meter's own error is beside it: each of its
means may be off by a share of itself, whatever the others are, and the worst case counts.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import yaml

from workflow_lib.analysis.counters import counted_shares
from workflow_lib.analysis.integrals import Floats
from workflow_lib.analysis.recordings import read_recordings
from workflow_lib.analysis.reduce import before_training
from workflow_lib.analysis.steps import read_steps
from workflow_lib.config import Meters
from workflow_lib.intervals.students_t import quantile
from workflow_lib.options import ends_quietly
from workflow_lib.records import bounds
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_outcome, read_record
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths, SweepPaths
from workflow_lib.records.reading import RecordError, read_bytes
from workflow_lib.records.tables import RUNS
from workflow_lib.records.whole_files import report_error
from workflow_lib.results import run_directory
from workflow_lib.study import ConfigError, checked
from workflow_lib.table_files import read_table

_EPOCH = datetime.fromtimestamp(0, UTC)
#: a column with a meter's counter of energy → how many J one of its unit is
_COUNTERS_J = {"energy_j": 1.0, "energy_wh": 3600.0}
#: what is left out at both ends of a window, where sensors and meters lag, and the shortest rest
_EDGE_S, _SHORTEST_S = 3.0, 10.0
#: rows of the meter that are further apart than this share of a window do not tell its mean
_LONGEST_GAP_SHARE = 0.1
#: powers that differ by this share of the highest are two levels; so many are needed, and the
#: highest is at least so many times the lowest, by the sensors
_LEVEL_SHARE, _LEAST_LEVELS, _LEAST_SPAN = 0.05, 3, 2.0
#: how far ahead or behind the meter's clock is looked for, and the least correlation of seconds
_SHIFTS_S, _LEAST_CORRELATION = np.arange(-30, 30.25, 0.25), 0.9


class MeterError(ValueError):
    """A log, or runs, that no line can be fitted to. The message says why, and what to do."""


class Log(NamedTuple):
    """What a meter counted: s since the epoch on its own clock, ascending, and J since then."""

    times: Floats
    energy_j: Floats

    def mean_w(self, starts: Floats, ends: Floats) -> Floats:
        """Mean powers in W of spans (s since the epoch), NaN where the log does not reach."""
        from_j, to_j = (
            np.interp(at, self.times, self.energy_j, np.nan, np.nan) for at in (starts, ends)
        )
        return (to_j - from_j) / (ends - starts)

    def covers(self, start: float, end: float) -> bool:
        """Whether rows reach over a span (s since the epoch), close enough together."""
        inside = self.times[(self.times > start) & (self.times < end)]
        close = np.diff([start, *inside, end]).max() <= _LONGEST_GAP_SHARE * (end - start)
        return bool(close and self.times[0] <= start and end <= self.times[-1])


class Watched(NamedTuple):
    """What the sensors beside a meter read in a run together: windows, each with its start and end
    in s since the epoch and its mean in W; and seconds, each with its start and its mean."""

    windows: Floats | Sequence[tuple[float, float, float]]
    seconds: Floats
    second_w: Floats


class Line(NamedTuple):
    """A fit: pairs of the gain and of the offset in W, half of their 95 % intervals, and what the
    meter's own error adds; then the windows in words."""

    values: Floats
    errors: Floats
    of_meter: Floats
    windows: str


def read_log(path: Path) -> Log:
    """Read a meter's CSV of times, and of powers or a counter. Raises MeterError, RecordError and
    OSError."""
    from scipy.integrate import cumulative_trapezoid

    text = read_bytes(path, bounds.CSV_BYTES).decode("utf-8-sig", errors="replace")
    lines = csv.reader(io.StringIO(text, newline=""))
    header = [name.strip().lower() for name in next(lines, [])]
    columns: list[str] = []
    for names in (("time", "unix_time_s"), ("power_w", *_COUNTERS_J)):
        found = [name for name in header if name in names]
        if len(found) != 1:
            raise MeterError(
                f"{path}:1: the header is {','.join(header) or 'empty'}, expected one column of "
                f"{', '.join(names)}; name it by its unit, and leave out the others"
            )
        columns += found
    scale = _COUNTERS_J.get(columns[1])
    rows = [[-math.inf, -math.inf]]
    for line in filter(None, lines):
        place, fields = f"{path}:{lines.line_num}", dict(zip(header, line, strict=False))
        if len(line) != len(header):
            raise MeterError(f"{place}: {len(line)} fields, expected {len(header)} as in line 1")
        rows.append([_number(place, name, fields[name]) for name in columns])
        before, now = rows[-2:]
        fell = now[0] <= before[0], bool(scale) and now[1] < before[1]
        if any(fell):
            name = columns[fell.index(True)]
            raise MeterError(
                f"{place}: {name} is {fields[name]}, expected more than in the row before; sort by "
                "time, leave out doubled rows, and cut where a counter began anew"
            )
    if len(rows) < 3:
        raise MeterError(f"{path}: {len(rows) - 1} rows below the header, expected two or more")
    times, values = np.array(rows[1:]).T
    if scale:
        return Log(times, (values - values[0]) * scale)
    return Log(times, cumulative_trapezoid(values, times, initial=0))


def _number(place: str, name: str, text: str) -> float:
    """A time in s since the epoch, or a value from 0 on."""
    try:
        if name == "time":
            number = (datetime.fromisoformat(text.strip()) - _EPOCH).total_seconds()
        else:
            number = float(text)
    except (ValueError, TypeError):  # of a time without its zone the latter
        number = math.nan
    if not 0 <= number < math.inf:
        zoned = "a time with its zone, as 2026-05-03T10:00:00+00:00"
        expected = zoned if name == "time" else "a number from 0 on"
        raise MeterError(f"{place}: {name} is {text!r}, expected {expected}, as in all rows")
    return number


def watched(directory: Path, gpu: str | None, node: str | None) -> Watched | None:
    """What the sensor of a GPU, by its UUID, or those of all GPUs of a node read in a run. None if
    the run has not their power. Raises MeterError, RecordError and OSError."""
    paths = RunPaths(directory)
    cell, ended = read_record(paths.cell, Cell), read_outcome(paths)
    starts = {start.node: start for start in _starts(paths)}
    completed = ended is not None and ended.outcome is Outcome.COMPLETED
    if not completed or not starts or cell.telemetry.interleaved_rates_hz:
        return None
    recordings = read_recordings(paths, {name: range(len(starts[name].gpus)) for name in starts})
    power, own = recordings.power_over_time, []
    for sensor in recordings.sensors(cell.hardware.gpus_per_package):
        name, index = recordings.place(sensor)
        if name == node or (gpu and starts[name].gpus[index].get("uuid") == gpu):
            own.append(sensor)
            if starts[name].simulated:
                raise MeterError(f"{directory}: its sensors are simulated; run it on GPUs")
            if node and starts[name].other_gpus:
                raise MeterError(f"{directory}: it had not all GPUs; run jobs with the whole node")
    edges = power.edges("power_w")
    if not own or not edges.keys() >= set(own):
        return None
    begin = max(edges[sensor][0].start_unix_s for sensor in own)
    end = min(edges[sensor][0].end_unix_s for sensor in own)
    numbers, steps = np.array(own)[:, None], read_steps(paths, cell)
    idle, measured = before_training(paths, steps), steps.window
    firsts = np.array([max(idle.start_unix_s, begin), measured.start_unix_s]) + _EDGE_S
    lasts = np.array([idle.end_unix_s, measured.end_unix_s]) - _EDGE_S
    joules = power.over("power_w", numbers, firsts, lasts)
    counted = counted_shares(recordings, measured)
    joules[:, 1] *= [counted[sensor].share or 1.0 for sensor in own]  # as energy_j
    windows = np.column_stack([firsts, lasts, joules.sum(0) / (lasts - firsts)])
    seconds = np.arange(begin, end - 1)
    second_w = power.over("power_w", numbers, seconds, seconds + 1).sum(0)
    return Watched(windows[lasts - firsts >= _SHORTEST_S], seconds, second_w)


def _starts(paths: RunPaths) -> list[TelemetryStart]:
    """What the samplers of a run found."""
    nodes = paths.sampled_nodes()
    return [read_record(paths.telemetry_start(node), TelemetryStart) for node in nodes]


def shift_s(log: Log, runs: Sequence[Watched]) -> float:
    """How far the meter's clock is ahead of the runs', in s: where seconds of both correlate best.
    What sensors lag is in it. Raises MeterError."""
    seconds = np.concatenate([run.seconds for run in runs])
    sensor_w = np.concatenate([run.second_w for run in runs])
    meters_w = np.array([log.mean_w(seconds + ahead, seconds + ahead + 1) for ahead in _SHIFTS_S])
    both = np.isfinite(meters_w + sensor_w)
    enough = max(both.sum(1).max() / 2, _SHORTEST_S)
    correlations = np.full(len(_SHIFTS_S), -1.0)
    for place in np.flatnonzero(both.sum(1) >= enough):
        pair = np.array([meters_w[place], sensor_w])[:, both[place]]
        if np.ptp(pair, axis=1).all():
            correlations[place] = np.corrcoef(pair)[0, 1]
    best = int(np.argmax(correlations))
    if correlations[best] < _LEAST_CORRELATION or best in (0, len(_SHIFTS_S) - 1):
        seen = (
            f"follows the sensors best {_SHIFTS_S[best]:g} s ahead, with a correlation of "
            f"{correlations[best]:.2f}; expected {_LEAST_CORRELATION} within ±{_SHIFTS_S[-1]:g} s"
            if both.sum(1).max() >= enough
            else f"does not overlap with the runs, of {seconds.min():.0f} to {seconds.max():.0f} s"
        )
        raise MeterError(
            f"the log, of {log.times[0]:.0f} to {log.times[-1]:.0f} s since 1970, {seen}. Name the "
            "log of a meter beside these GPUs, or say with --shift how far its clock is ahead"
        )
    return float(_SHIFTS_S[best])


def fit(log: Log, runs: Sequence[Watched], shift: float, accuracy: float) -> Line:
    """The line through the windows of runs, with the meter's clock ``shift`` s ahead and its error
    ``accuracy`` a share of what it shows. Raises MeterError."""
    from scipy import stats

    windows = [(w, a + shift, b + shift) for run in runs for a, b, w in run.windows]
    rows = sorted(row for row in windows if log.covers(*row[1:]) and math.isfinite(row[0]))
    readings, starts, ends = np.array(rows).reshape(-1, 3).T
    apart = np.diff(readings) > _LEVEL_SHARE * readings[-1:]
    levels = int(np.count_nonzero(apart)) + bool(readings.size)
    if levels < _LEAST_LEVELS or readings[-1] < _LEAST_SPAN * readings[0]:
        watts = ", ".join(f"{reading:.0f}" for reading in readings) or "no"
        raise MeterError(
            f"the log covers {readings.size} windows at {levels} levels, of {watts} W; expected "
            f"{_LEAST_LEVELS} levels, the highest {_LEAST_SPAN:g} times the lowest. A window takes "
            f"{_SHORTEST_S + 2 * _EDGE_S:g} s, and a row of the meter in each tenth of it; add "
            "runs at other loads: docs/how-to/measure-with-a-power-meter.md"
        )
    meter_w = log.mean_w(starts, ends)
    line, t = stats.linregress(meter_w, readings), quantile(readings.size - 2)
    off_w = np.abs(readings - line.slope * meter_w - line.intercept).max()
    # What of each of the meter's errors goes into the slope and into the intercept.
    parts = np.abs(np.linalg.pinv(np.column_stack([meter_w, np.ones_like(meter_w)])))
    return Line(
        np.array([line.slope - 1, line.intercept]),
        t * np.array([line.stderr, line.intercept_stderr]),
        line.slope * accuracy * (parts @ meter_w),
        f"{readings.size} windows of {len(runs)} runs at {levels} levels, {readings[0]:.0f} to "
        f"{readings[-1]:.0f} W by the sensors, at most {off_w:.2g} W off the line",
    )


def _text(chosen: argparse.Namespace) -> str:
    """What the command prints. Raises MeterError, ConfigError, RecordError and OSError."""
    if not 0 <= chosen.accuracy < 0.5:
        raise MeterError(f"--accuracy is {chosen.accuracy:g}, expected a share as 0.01 for 1 %")
    log = read_log(chosen.log)
    directories = list(dict.fromkeys(run for path in chosen.runs for run in _runs(path)))
    found = [run for each in directories if (run := watched(each, chosen.gpu, chosen.node))]
    if not found:
        starts = [start for each in directories for start in _starts(RunPaths(each))]
        there = {f"{start.node}: {gpu.get('uuid')}" for start in starts for gpu in start.gpus}
        raise MeterError(
            f"none of {len(directories)} runs completed with power of {chosen.gpu or chosen.node}; "
            f"expected one of {', '.join(sorted(there)) or 'no GPU'}"
        )
    shift = shift_s(log, found) if chosen.shift is None else chosen.shift
    line = fit(log, found, shift, chosen.accuracy)
    (gain, offset_w), (error, offset_error_w) = line.values, line.errors + line.of_meter
    about = (
        f"# {line.windows};\n"
        f"# the meter's clock is {shift:g} s ahead, its accuracy {chosen.accuracy:.2%}.\n"
        f"# Gain {gain:+.2%} ± {line.errors[0]:.2%} (95 %) ± {line.of_meter[0]:.2%} (meter)\n"
    )
    if chosen.node is not None:
        return about + (
            f"# of all GPUs of {chosen.node} together, if all else in it drew "
            f"{-offset_w / (1 + gain):.0f} W at every load.\n"
            "# Losses of power supplies, and fans that grow with the load, lower it: an efficiency "
            "of 95 % by 5 %.\n# It tells neither offsets nor the gain of any one GPU, so nothing "
            "is for config/meters.yaml.\n"
        )
    if abs(gain) >= 0.5 or error >= 0.5:
        raise MeterError(
            f"the gain is {gain:+.0%} ± {error:.0%}, expected less than 50 %; see that the meter "
            "shows W of this GPU alone (--node is for a whole node), or add runs at other loads"
        )
    entry = {
        "gain": round(float(gain), 4),
        "uncertainty": round(float(error), 4),
        "offset_w": round(float(abs(offset_w) + offset_error_w), 1),
        "source": f"{chosen.instrument}, {datetime.fromtimestamp(log.times[0], UTC):%Y-%m-%d}",
    }
    block = {"gpus": {chosen.gpu: entry}}
    checked("the fit", Meters, block)
    of_offset = f"{offset_w:+.1f} ± {line.errors[1]:.1f} (95 %) ± {line.of_meter[1]:.1f} W (meter)"
    entries = yaml.safe_dump(block, sort_keys=False, allow_unicode=True)
    return f"{about}# Offset {of_offset}\n{entries}"


def _runs(path: Path) -> list[Path]:
    """The directories of the runs of a sweep, or a run's own."""
    if RunPaths(path).cell.is_file():
        return [path.resolve()]
    table, results = SweepPaths(path).table("runs"), path.resolve().parent.parent
    if not table.is_file():
        raise MeterError(
            f"{path} has neither cell.json nor runs.parquet; expected the directory of a run, as "
            "results/cells/<cell>/run1, or of a sweep that was run, as results/sweeps/<sweep>"
        )
    rows = read_table(table, RUNS).select("cell", "run").iter_rows()
    return [run_directory(results, cell, run) for cell, run in rows]


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=(__doc__ or "").split("\n")[0])
    add, beside = parser.add_argument, parser.add_mutually_exclusive_group(required=True)
    add("runs", type=Path, nargs="+", metavar="RUN_OR_SWEEP", help="directories of runs or sweeps")
    add("--log", type=Path, required=True, metavar="FILE", help="the meter's CSV")
    add("--instrument", required=True, help="which meter, where, and by whom")
    beside.add_argument("--gpu", metavar="UUID", help="the GPU that the meter is inline with")
    beside.add_argument("--node", help="the node whose whole power the meter shows")
    accuracy = "the meter's own error, as a share of what it shows (default: 0.01)"
    add("--accuracy", type=float, default=0.01, metavar="SHARE", help=accuracy)
    ahead = "by how much the meter's clock is ahead (default: found)"
    add("--shift", type=float, metavar="S", help=ahead)
    return parser


@ends_quietly
def main(arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.meter") -> int:
    """Run the command; returns the exit code, 1 after one message on stderr."""
    chosen = command_line(prog).parse_args(arguments)
    try:
        print(_text(chosen), end="")
    except (MeterError, ConfigError, RecordError, OSError) as error:
        return report_error("meter", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
