"""``triptych ingest FILE --output DIR``: a run from a recording of nvidia-smi, DCGM or Zeus.

FILE is what ``nvidia-smi --query-gpu=timestamp,index,uuid,power.draw,… --format=csv -lms …`` wrote,
Prometheus' answer to ``/api/v1/query_range`` for metrics of DCGM's exporter, as JSON, or texts of
that exporter one after the other, the output of ``dcgmi dmon``, or the log of Zeus'
``ZeusMonitor(log_file=…)``.
The run has no steps, and no energy counter that its power could be checked against.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.audit import LONGEST_GAP_PERIODS
from workflow_lib.measure.conclude import conclude, count
from workflow_lib.measure.summary import nothing_told
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import GPU_SAMPLES
from workflow_lib.records.whole_files import write_json

#: column of telemetry → nvidia-smi's names of it, the one that is best for energy first
COLUMNS: Mapping[str, Sequence[str]] = {
    "power_w": ("power.draw", "power.draw.average", "power.draw.instant"),
    "temperature_c": ("temperature.gpu",),
    "sm_clock_mhz": ("clocks.current.sm", "clocks.sm"),
    "memory_clock_mhz": ("clocks.current.memory", "clocks.mem"),
    "utilisation_percent": ("utilization.gpu",),
}
#: metric of DCGM's exporter → column of telemetry, in the same unit
METRICS: Mapping[str, str] = {
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_SM_CLOCK": "sm_clock_mhz",
    "DCGM_FI_DEV_MEM_CLOCK": "memory_clock_mhz",
    "DCGM_FI_DEV_GPU_UTIL": "utilisation_percent",
}
#: tag of dcgmi dmon → column of telemetry, in the same unit
TAGS: Mapping[str, str] = {
    "POWER": "power_w",
    "TMPTR": "temperature_c",
    "SMCLK": "sm_clock_mhz",
    "MMCLK": "memory_clock_mhz",
    "GPUTL": "utilisation_percent",
}
_DMON = re.compile(r"\s*#\s*Entity\b")
#: a line of the exporter's text; with a time where Prometheus federates it
_SCRAPED = re.compile(
    r"^(?P<name>DCGM_FI_DEV_\w+)\{(?P<labels>[^\n]*)\} (?P<value>\S+)"
    r"(?: (?P<time>\d[\d.e+]*))?\s*$",
    re.MULTILINE,
)
#: Times are in ms in Prometheus' text and in s in OpenMetrics, which this tells apart: it is 1973
#: in ms and the year 5138 in s.
_LEAST_MS = 1e11
_ZEUS = "start_time,window_name,elapsed_time,"
#: readings farther apart do not see how a step's power changes
_FAR_APART_S = 1.0
#: what tells GPUs apart, the best first
_IDENTITIES = ("uuid", "gpu_uuid", "pci.bus_id", "gpu_bus_id", "index", "serial")
_UNITS = {"power_w": "W", "sm_clock_mhz": "MHz", "memory_clock_mhz": "MHz"}
#: between Zeus' windows no energy is logged; of so small a share of the time it is as around it
_UNSEEN_SHARE = 0.01
NODE = "recorded"
#: a reading: the node, the GPU's identity and name, and columns of telemetry
Reading = tuple[str, str, str, dict[str, Any]]


class RecordingError(ValueError):
    """A recording cannot be read. The message says where and why."""


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("recording", type=Path, metavar="FILE", help="the recording")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="the run")
    parser.add_argument(
        "--from", dest="start", type=_moment_or_error, metavar="TIME", help="as 2026/11/27 10:30:00"
    )
    parser.add_argument(
        "--until", dest="end", type=_moment_or_error, metavar="TIME", help="as 2026/11/27 10:30:00"
    )
    parser.add_argument("--tokens", type=count, metavar="N", help="of all that time")
    parser.add_argument(
        "--every",
        type=float,
        metavar="S",
        help="between readings that have no times, the first of which --from tells",
    )
    parser.add_argument("--window", metavar="NAME", help="of Zeus' windows, those of this name")
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych ingest") -> int:
    """Make a run of a recording; returns the exit code."""
    parser = command_line(prog)
    options = parser.parse_args(arguments)
    try:
        return int(not conclude(RunPaths(options.output.absolute()), write(options), None))
    except RecordingError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}")


def write(options: argparse.Namespace) -> dict[str, Any]:
    """Write the run's telemetry; returns what its ``measured.json`` is made with.

    Raises RecordingError, and OSError.
    """
    paths = RunPaths(options.output.absolute())
    if paths.telemetry.exists():
        raise RecordingError(f"{options.output} has a run; name a new directory")
    text = options.recording.read_text(encoding="utf-8", errors="replace")
    file = str(options.recording)
    limits = []
    if text.lstrip()[:1] == "{":
        readings = _of_prometheus(lambda: json.loads(text)["data"]["result"], file)
    elif _SCRAPED.search(text):
        has_times = all(scraped["time"] for scraped in _SCRAPED.finditer(text))
        began_s, every_s = (0.0, 0.0) if has_times else _told_times(options, "no times here")
        readings = _of_prometheus(lambda: _series_of_text(text, began_s, every_s), file)
        limits = [] if has_times else ["times_assumed"]
    elif text.startswith(_ZEUS):
        readings, limits = _of_zeus(text, file, options.window), ["means_of_windows"]
    elif _DMON.match(text):
        readings = _of_dmon(text, file, *_told_times(options, "dcgmi dmon writes no times"))
        limits = ["times_assumed"]
    else:
        readings = _of_nvidia_smi(text, file)
    gpus: dict[str, dict[str, list[dict[str, Any]]]] = {}
    names: dict[str, str] = {}
    for node, identity, name, reading in readings:
        gpus.setdefault(node, {}).setdefault(identity, []).append(reading)
        names[identity] = name
    times = [[r["unix_time_s"] for r in rows] for of in gpus.values() for rows in of.values()]
    if not times or min(map(len, times)) < 2:
        raise RecordingError(f"{options.recording} has no two readings of each GPU")
    period_s = statistics.median(b - a for of in times for a, b in zip(of, of[1:]))
    if period_s > _FAR_APART_S:
        limits.append("readings_far_apart")
    edges = list(map(min, times)), list(map(max, times))
    for told, option, of_gpus in zip((options.start, options.end), ("--from", "--until"), edges):
        apart_s = max(of_gpus) - min(of_gpus)
        if told is None and apart_s > max(_FAR_APART_S, LONGEST_GAP_PERIODS * period_s):
            raise RecordingError(
                f"{options.recording}: readings of its GPUs do not reach equally far, by "
                f"{apart_s:.4g} s; say which time counts with {option}"
            )
    for path in (paths.steps, paths.telemetry):
        path.mkdir(parents=True)
    for node, of_node in gpus.items():
        _write_node(paths, node, of_node, names, period_s)
    return nothing_told(
        options.recording.name,
        # Where the readings of every GPU reach.
        started_unix_s=max(edges[0]) if options.start is None else options.start,
        ended_unix_s=min(edges[1]) if options.end is None else options.end,
        warmup_steps=0,
        tokens=options.tokens,
        limits=limits,
    )


def _told_times(options: argparse.Namespace, why: str) -> tuple[float, float]:
    """When a recording without times began, and how far apart its readings are, in s."""
    if options.start is None or not (options.every or 0) > 0:
        raise RecordingError(
            f"{options.recording}: {why}; say when it began and how far apart its readings are, as "
            'in --from "2026/11/27 10:30:00" --every 1'
        )
    return options.start, options.every


def _write_node(
    paths: RunPaths,
    node: str,
    gpus: Mapping[str, Sequence[Mapping[str, Any]]],
    names: Mapping[str, str],
    period_s: float,
) -> None:
    """Write the telemetry of a node: the readings of each GPU, by its identity."""
    rows = [{**r, "gpu": n} for n, of_gpu in enumerate(gpus.values()) for r in of_gpu]
    rows.sort(key=lambda row: (row["unix_time_s"], row["gpu"]))
    with paths.gpu_samples(node).open("w", encoding="ascii", newline="") as out:
        columns = [column.name for column in GPU_SAMPLES]
        writer = csv.DictWriter(out, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    start = {
        "node": node,
        "source": "recording",
        "simulated": False,
        "started_unix_s": rows[0]["unix_time_s"],
        "sample_rate_hz": 1 / period_s if period_s else 0.0,
        "gpus": [
            {"index": n, "name": names[identity], "uuid": identity}
            for n, identity in enumerate(gpus)
        ],
        "missing": {},
    }
    write_json(paths.telemetry_start(node), start)


def _moment_or_error(text: str) -> float:
    try:
        return moment(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time as 2026/11/27 10:30:00.5") from None


def moment(text: str) -> float:
    """nvidia-smi's local time in s since 1970, of this machine's time zone. Raises ValueError."""
    whole, _, fraction = text.strip().partition(".")
    return time.mktime(time.strptime(whole, "%Y/%m/%d %H:%M:%S")) + float(f"0.{fraction or 0}")


def _unix_s(at: float) -> float:
    """A time of an exporter's text in s since 1970."""
    return at / 1e3 if at >= _LEAST_MS else at


def _series_of_text(text: str, began_unix_s: float, every_s: float) -> Iterator[Any]:
    """Scrapes of DCGM's exporter one after the other, each value as a series of query_range."""
    seen: Counter[tuple[str, str]] = Counter()
    for scraped in _SCRAPED.finditer(text):
        labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', scraped["labels"]))
        of_gpu = (scraped["name"], scraped["labels"])
        assumed_s = began_unix_s + every_s * seen[of_gpu]
        seen[of_gpu] += 1
        at = _unix_s(float(scraped["time"])) if scraped["time"] else assumed_s
        yield {
            "metric": {"__name__": scraped["name"], **labels},
            "values": [[at, scraped["value"]]],
        }


def _of_prometheus(series_of: Callable[[], Iterable[Any]], file: str) -> Iterator[Reading]:
    """Readings of DCGM's exporter, a GPU after the other, in order of time."""
    gpus: dict[tuple[str, str, str], dict[float, dict[str, Any]]] = {}
    try:
        for series in series_of():
            labels = series["metric"]
            column = METRICS.get(labels.get("__name__", ""))
            if column is None:
                continue
            # It becomes part of the names of files.
            node = re.sub(r"[^\w.-]", "_", labels.get("Hostname", NODE)).lstrip(".") or NODE
            gpu = gpus.setdefault((node, labels["UUID"], labels.get("modelName", "")), {})
            for at, value in series["values"]:
                if math.isfinite(number := float(value)):
                    gpu.setdefault(float(at), {})[column] = number
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordingError(
            f"{file} is no answer of Prometheus' query_range with labels UUID: {error!r}"
        ) from None
    if not any("power_w" in reading for gpu in gpus.values() for reading in gpu.values()):
        raise RecordingError(
            f"{file} has no DCGM_FI_DEV_POWER_USAGE; ask query_range for "
            '{__name__=~"DCGM_FI_DEV_(POWER_USAGE|GPU_TEMP|SM_CLOCK)"}'
        )
    for (node, uuid, name), readings in gpus.items():
        for at in sorted(readings):
            yield node, uuid, name, {"unix_time_s": at, **readings[at]}


def _of_dmon(text: str, file: str, began_unix_s: float, every_s: float) -> Iterator[Reading]:
    """Readings of dcgmi dmon: those of a GPU one after the other, so far apart as is said."""
    tags: list[str] = []
    seen: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), start=1):
        if _DMON.match(line):
            tags = line.partition("Entity")[2].split()
            if "POWER" not in tags:
                raise RecordingError(
                    f"{file}, line {number}: no POWER; record with dcgmi dmon -e 155,150,100"
                )
        if not (of_gpu := re.match(r"GPU (\d+)\s+(\S.*)", line)):
            continue  # a header, units, or another entity
        values = of_gpu[2].split()
        if len(values) != len(tags):
            raise RecordingError(f"{file}, line {number}: {len(values)} values of {len(tags)}")
        reading: dict[str, Any] = {"unix_time_s": began_unix_s + every_s * seen[of_gpu[1]]}
        seen[of_gpu[1]] += 1
        for tag, value in zip(tags, values):
            if tag in TAGS:
                try:
                    reading[TAGS[tag]] = None if value == "N/A" else float(value)
                except ValueError:
                    raise RecordingError(f"{file}, line {number}: {tag} is {value}") from None
        yield NODE, of_gpu[1], "", reading


def _of_zeus(text: str, file: str, window: str | None) -> Iterator[Reading]:
    """The mean power of each window, at its begin and end. Only energies are logged by Zeus."""
    rows = list(csv.DictReader(io.StringIO(text)))
    names = sorted({row["window_name"] for row in rows})
    if window is None and len(names) == 1:
        (window,) = names
    own = [row for row in rows if row["window_name"] == window]
    if not own:
        raise RecordingError(f"{file}: name its windows with --window, one of {', '.join(names)}")
    ended_s, unseen_s, seen_s = -math.inf, 0.0, 0.0
    try:
        for row in sorted(own, key=lambda row: float(row["start_time"])):
            start_s, elapsed_s = float(row["start_time"]), float(row["elapsed_time"])
            if start_s < ended_s or elapsed_s <= 0:
                raise RecordingError(f"windows {window} overlap, or have no length")
            unseen_s += start_s - ended_s if seen_s else 0.0
            seen_s += elapsed_s
            ended_s = start_s + elapsed_s
            for column, value in row.items():
                if gpu := re.fullmatch(r"gpu(\d+)_energy", column or ""):
                    power_w = float(value) / elapsed_s
                    for at in (start_s, ended_s):
                        yield NODE, gpu[1], "", {"unix_time_s": at, "power_w": power_w}
        if unseen_s > _UNSEEN_SHARE * (seen_s + unseen_s):
            raise RecordingError(
                f"between windows {window} are {unseen_s:.4g} s, beside {seen_s:.4g} s in them, "
                "whose energy is not logged; log a window around all of the time that counts"
            )
    except (ValueError, TypeError) as error:
        why = error if isinstance(error, RecordingError) else f"no log of Zeus: {error}"
        raise RecordingError(f"{file}: {why}") from None


def _of_nvidia_smi(text: str, file: str) -> Iterator[Reading]:
    """Readings of nvidia-smi, line by line."""
    lines = csv.reader(io.StringIO(text, newline=""), skipinitialspace=True)
    header = [title.partition(" [")[0] for title in next(lines, [])]
    identity = next((name for name in _IDENTITIES if name in header), None)
    own = {
        column: next((name for name in names if name in header), None)
        for column, names in COLUMNS.items()
    }
    if "timestamp" not in header or own["power_w"] is None or identity is None:
        raise RecordingError(
            f"{file} has no columns timestamp, power.draw and uuid in its first line; record with "
            "nvidia-smi --query-gpu=timestamp,uuid,name,power.draw,temperature.gpu,clocks.sm "
            "--format=csv -lms 100"
        )
    for number, fields in enumerate(lines, start=2):
        if len(fields) != len(header):
            # The last line of a recording that was stopped.
            if next(lines, None) is None:
                return
            raise RecordingError(f"{file}, line {number}: {len(fields)} fields of {len(header)}")
        row = dict(zip(header, fields))
        try:
            reading: dict[str, Any] = {"unix_time_s": moment(row["timestamp"])}
            for column, name in own.items():
                reading[column] = _value(row[name], _UNITS.get(column, "")) if name else None
        except ValueError as error:
            raise RecordingError(f"{file}, line {number}: {error}") from None
        yield NODE, row[identity], row.get("name", row.get("gpu_name", "")), reading


def _value(text: str, unit: str) -> float | None:
    """A field as a number; None for "[N/A]" and its like. Raises ValueError for another unit."""
    if not text or text.startswith("["):
        return None
    number, _, own_unit = text.partition(" ")
    if own_unit not in ("", unit, "%"):
        raise ValueError(f"{text!r} is not in {unit}")
    return float(number)


if __name__ == "__main__":
    sys.exit(main())
