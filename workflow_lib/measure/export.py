"""``triptych export RUN --to FORMAT --output FILE``: a run for other programs.

perfetto is a timeline for https://ui.perfetto.dev: steps and their phases, kernels of a profiled
run, and watts, degrees and clocks of each GPU, on one axis. openmetrics is what a measured command
took, for node_exporter's textfile collector. rows is a JSON line a step, for logs of experiments as
MLflow's and Weights & Biases'. openg2g is the power of a GPU over the measured steps, for
simulations of grids by OpenG2G.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workflow_lib.audit import RECORDS, Audit, Clock, DamagedError, Files, Row, read_file
from workflow_lib.records.openmetrics import Family, Sample, text_of
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import THROTTLES
from workflow_lib.records.whole_files import whole_file

Event = dict[str, Any]
#: column of a GPU's samples → its counter on the timeline
COUNTERS = {
    "power_w": "power, W",
    "temperature_c": "temperature, °C",
    "sm_clock_mhz": "SM clock, MHz",
}
#: categories of a trace by torch.profiler that run on a GPU
_ON_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
#: threads of a rank's kernels on the timeline begin here, this far apart
_KERNEL_THREADS, _MOST_STREAMS = 1_000, 1_000


class Timeline:
    """The events of a run, as Chrome's trace format has them, in µs since its first reading."""

    def __init__(self, paths: RunPaths) -> None:
        """Raises DamagedError if a file is not what the contract says."""
        self._paths = paths
        self._files = Files(str(paths.directory), lambda n: read_file(paths.directory, n))
        self._nodes = paths.sampled_nodes()
        self._clocks = {
            node: Clock(self._files.record(f"steps/clock-{node}.json")) for node in self._nodes
        }
        starts = [self._start(node)["started_unix_s"] for node in self._nodes]
        self.simulated = _simulated(self._files, self._nodes)
        #: the axis begins here
        self.began_unix_s = min(starts, default=0.0)

    def _start(self, node: str) -> Mapping[str, Any]:
        return self._files.record(f"telemetry/{node}.json") or {"gpus": (), "started_unix_s": 0.0}

    def _us(self, node: str, unix_s: float) -> float:
        clock = self._clocks.get(node)
        at = clock.corrected(unix_s) if clock else unix_s
        return round((at - self.began_unix_s) * 1e6, 3)

    def events(self) -> Iterator[Event]:
        """All events, in no order."""
        for pid, node in enumerate(self._nodes, start=1):
            yield _named("process_name", node, pid)
            yield from self._readings(node, pid)
        for path in sorted(self._paths.steps.glob("*.csv")):
            yield from self._steps(path)

    def _readings(self, node: str, pid: int) -> Iterator[Event]:
        gpus = [str(gpu.get("index", n)) for n, gpu in enumerate(self._start(node)["gpus"])]
        for row in self._files.rows(f"telemetry/{node}.csv") or ():
            at = {"ph": "C", "pid": pid, "ts": self._us(node, float(row["unix_time_s"]))}
            for column, name in COUNTERS.items():
                if row.get(column):
                    counter = f"GPU {gpus[int(row['gpu'])]} {name}"
                    counter += " (simulated)" if self.simulated else ""
                    yield {**at, "name": counter, "args": {"value": float(row[column])}}

    def _steps(self, path: Path) -> Iterator[Event]:
        """The steps of a rank, or those of the log or of the trainer's records."""
        rank = self._files.record(f"steps/{path.stem}.json") or {}
        node = rank.get("node") or (self._nodes or [""])[0]
        pid = self._nodes.index(node) + 1 if node in self._nodes else 0
        tid = rank.get("rank", 0) + (_KERNEL_THREADS // 2 if path.stem.startswith("hook") else 1)
        yield _named("thread_name", path.stem, pid, tid)
        for row in self._files.rows(f"steps/{path.name}") or ():
            start, end = float(row["started_unix_s"]), float(row["ended_unix_s"])
            arguments = {n: row[n] for n in ("phase", "tokens", "loss", "skipped") if row.get(n)}
            yield self._slice(f"step {row['step']}", node, pid, tid, start, end, arguments)
            for name, part_end in _parts(row):
                yield self._slice(name, node, pid, tid, start, part_end)
                start = part_end
        if "rank" in rank:
            yield from self._kernels(rank["rank"], node, pid)

    def _slice(
        self,
        name: str,
        node: str,
        pid: int,
        tid: int,
        start: float,
        end: float,
        arguments: Mapping[str, str] | None = None,
    ) -> Event:
        begin = self._us(node, start)
        event: Event = {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": begin}
        event["dur"] = round(self._us(node, end) - begin, 3)
        return {**event, "args": dict(arguments)} if arguments else event

    def _kernels(self, rank: int, node: str, pid: int) -> Iterator[Event]:
        """What ran on the GPU of a rank whose trace was taken, a thread a stream."""
        try:
            with gzip.open(self._paths.trace(rank)) as stream:
                trace = json.load(stream)
        except FileNotFoundError:
            return
        except (OSError, EOFError, ValueError) as error:
            raise DamagedError(f"{self._paths.trace(rank)}: {error}") from None
        base_s = trace.get("baseTimeNanoseconds", 0) / 1e9
        streams: dict[Any, int] = {}
        for event in trace["traceEvents"]:
            if event.get("cat") not in _ON_GPU or event.get("ph") != "X":
                continue
            stream = event.get("args", {}).get("stream")
            if stream not in streams:
                streams[stream] = _KERNEL_THREADS + rank * _MOST_STREAMS + len(streams)
                title = f"rank {rank}, stream {stream}"
                yield _named("thread_name", title, pid, streams[stream])
            start = base_s + float(event["ts"]) / 1e6
            end = start + float(event["dur"]) / 1e6
            yield self._slice(str(event["name"]), node, pid, streams[stream], start, end)


def _simulated(files: Files, nodes: Sequence[str]) -> bool:
    """Whether the readings of a node are simulated."""
    starts = (files.record(f"telemetry/{node}.json") or {} for node in nodes)
    return any(start.get("simulated") for start in starts)


def _named(what: str, name: str, pid: int, tid: int = 0) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _parts(row: Row) -> Iterator[tuple[str, float]]:
    """The parts of a step, and when each had ended."""
    for part in filter(None, (row.get("parts") or "").split(";")):
        name, _, end = part.rpartition("=")
        yield name, float(end)


def perfetto(directory: Path) -> str:
    """A run's timeline. Raises DamagedError and OSError."""
    timeline = Timeline(RunPaths(directory))
    events = list(timeline.events())
    if not events:
        raise DamagedError(f"{directory} has no telemetry and no steps; name a run's directory")
    about = {"began_unix_s": timeline.began_unix_s, "simulated": timeline.simulated}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about})


#: the files of steps, the best first
_STEPS = ("rank0.csv", "hook-rank0.csv", "records.csv", "log.csv")


class NodeReadings:
    """The readings of a node, in order of time; times are of rank 0's clock."""

    def __init__(self, readings: Sequence[Row], clock: Clock) -> None:
        self._rows = readings
        self._times = [clock.corrected(float(row["unix_time_s"])) for row in readings]
        self._gpus = {row["gpu"] for row in readings}

    def between(self, start: float, end: float) -> tuple[float | None, list[float]]:
        """The mean power of all GPUs together, None if one has no reading; and temperatures."""
        inside = self._rows[bisect_left(self._times, start) : bisect_right(self._times, end)]
        powers: dict[str, list[float]] = {gpu: [] for gpu in self._gpus}
        for row in inside:
            if row["power_w"]:
                powers[row["gpu"]].append(float(row["power_w"]))
        whole = bool(powers) and all(powers.values())
        power_w = sum(map(statistics.fmean, powers.values())) if whole else None
        return power_w, [float(row["temperature_c"]) for row in inside if row["temperature_c"]]


def rows(directory: Path) -> str:
    """A JSON line for each step that rank 0 told, or the log: its seconds and loss, the tokens of
    all ranks, and the mean power of all GPUs and highest temperature in it; null where no reading
    fell into it.

    Raises DamagedError, and OSError.
    """
    paths = RunPaths(directory)
    files = Files(str(directory), lambda name: read_file(directory, name))
    of_files = (files.rows(f"steps/{name}") for name in _STEPS)
    steps = next((of_file for of_file in of_files if of_file), None)
    if steps is None:
        raise DamagedError(f"{directory} has no steps, and rows are of steps")
    nodes = [
        NodeReadings(
            files.rows(f"telemetry/{node}.csv") or [],
            Clock(files.record(f"steps/clock-{node}.json")),
        )
        for node in paths.sampled_nodes()
    ]
    tokens_of = _tokens_of(paths, files)
    simulated = _simulated(files, paths.sampled_nodes())
    lines = []
    for step in steps:
        start, end = float(step["started_unix_s"]), float(step["ended_unix_s"])
        of_nodes = [node.between(start, end) for node in nodes]
        powers = [power_w for power_w, _ in of_nodes if power_w is not None]
        row = {
            "step": int(step["step"]),
            "warmup": step["phase"] == "warmup" if step.get("phase") else None,
            "time": end,
            "step_s": (end - start) / int(step.get("steps") or 1),
            "tokens": tokens_of(step),
            "loss": _number(step.get("loss")),
            "power_w": sum(powers) if powers and len(powers) == len(nodes) else None,
            "temperature_max_c": max((t for _, of in of_nodes for t in of), default=None),
            "simulated": simulated,
        }
        lines.append(json.dumps(row) + "\n")
    return "".join(lines)


def _tokens_of(paths: RunPaths, files: Files) -> Callable[[Row], float | None]:
    """What tells the tokens of all ranks in a step, by rank 0's row of it; None if not known."""
    cell = files.record("cell.json")
    if cell is not None:
        per_step = cell["training"]["global_batch_size"] * cell["model"]["sequence_length"]
        trains = cell["training"].get("workload") != "inference"
        return lambda step: float(per_step) if trains else None
    per_step = (files.record("measured.json") or {}).get("tokens_per_step")
    if per_step:
        return lambda step: per_step * float(step.get("steps") or 1)
    names = [f"steps/{path.name}" for path in paths.steps.glob("rank*.csv")]
    ranks = [{r["step"]: _number(r["tokens"]) for r in files.rows(n) or []} for n in names]

    def of_ranks(step: Row) -> float | None:
        known = [tokens for rank in ranks if (tokens := rank.get(step["step"])) is not None]
        return sum(known) if known and len(known) == len(ranks) else None

    return of_ranks


def _number(text: str | None) -> float | None:
    return float(text) if text else None


_VALUES = {
    "energy_j": Family("triptych_run_energy_joules", "gauge", "joules", "of all GPUs"),
    "measured_duration_s": Family("triptych_run_seconds", "gauge", "seconds", "that energy is of"),
    "power_mean_w": Family("triptych_run_power_watts", "gauge", "watts", "of all GPUs, mean"),
    "step_time_s": Family("triptych_run_step_seconds", "gauge", "seconds", "a step, mean"),
    "counted_steps": Family("triptych_run_steps", "gauge", "", "steps that count"),
    "tokens_per_s": Family("triptych_run_tokens_per_second", "gauge", "", "of all ranks"),
    "energy_per_token_j": Family("triptych_run_token_joules", "gauge", "joules", "a token"),
    "energy_per_step_j": Family("triptych_run_per_step_joules", "gauge", "joules", "a step"),
}
_VALID = Family("triptych_run_valid", "gauge", "", "1 if the energy may be used, else 0")
#: column → its metric, and the factor to the metric's unit
_OF_GPU = {
    "power_mean_w": (Family("triptych_run_gpu_power_watts", "gauge", "watts", "mean"), 1.0),
    "temperature_max_c": (
        Family("triptych_run_gpu_temperature_celsius", "gauge", "celsius", "highest"),
        1.0,
    ),
    "sm_clock_mean_mhz": (
        Family("triptych_run_gpu_sm_clock_hertz", "gauge", "hertz", "mean"),
        1e6,
    ),
}
_THROTTLED = Family(
    "triptych_run_gpu_throttled_ratio", "gauge", "ratio", "share of the time, by reason"
)
FAMILIES = (*_VALUES.values(), _VALID, *(family for family, _ in _OF_GPU.values()), _THROTTLED)


def openmetrics(directory: Path) -> str:
    """What a measured command took. A value that is not known is absent.

    Raises DamagedError, and OSError.
    """
    path = RunPaths(directory).measured
    try:
        record = json.loads(path.read_bytes())
        return text_of(FAMILIES, _samples(record, directory.name))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{path} is no record of a measured command: {error!r}") from None


def _samples(record: Mapping[str, Any], name: str) -> Iterator[Sample]:
    simulated = str(bool(record["simulated"])).lower()
    run = {"run": name, "job": record["job_id"] or "", "simulated": simulated}
    for measure, family in _VALUES.items():
        if measure in record["values"]:
            yield family, run, record["values"][measure]
    yield _VALID, run, int(not record["invalid"])
    for gpu in record["gpus"]:
        labels = {**run, "node": gpu["node"], "gpu": str(gpu["gpu"]), "uuid": gpu["uuid"] or ""}
        for column, (family, scale) in _OF_GPU.items():
            if gpu[column] is not None:
                yield family, labels, gpu[column] * scale
        for counter, share in gpu["throttle_shares"].items():
            yield _THROTTLED, {**labels, "reason": THROTTLES[counter]}, share


#: between two rows of power, in s, as in OpenG2G's own traces: a mean of five samples
_BETWEEN_S = 0.1


def openg2g(directory: Path) -> str:
    """The mean power of a GPU over the measured steps, every 0.1 s, as OpenG2G's ``TrainingTrace``
    reads it. A time at which a GPU has no sample is left out, and OpenG2G interpolates.

    Raises DamagedError, also where the driver told no samples: readings are means over a second.
    Raises OSError.
    """
    files = Files(str(directory), lambda name: read_file(directory, name))
    try:
        audit = Audit(files)
    except (KeyError, TypeError) as error:
        raise DamagedError(f"{directory} is no whole run: {error!r}") from None
    if _simulated(files, RunPaths(directory).sampled_nodes()):
        raise DamagedError(f"{directory}: its readings are simulated, and no power of a GPU")
    if audit.invalid:
        raise DamagedError(f"{directory}: its telemetry does not hold: {'; '.join(audit.invalid)}")
    start, end = audit.window
    gpus: list[dict[int, list[float]]] = []
    for samples in audit.samples:
        of_gpu: dict[int, list[float]] = {}
        for unix_s, watts in samples:
            if start <= unix_s <= end:
                of_gpu.setdefault(int((unix_s - start) / _BETWEEN_S), []).append(watts)
        gpus.append(of_gpu)
    if not gpus or not all(gpus):
        raise DamagedError(
            f"{directory}: the driver told no samples of its own of every GPU, and readings are "
            "means over a second"
        )
    told = sorted(set.intersection(*map(set, gpus)))
    means = {n: statistics.fmean(statistics.fmean(of_gpu[n]) for of_gpu in gpus) for n in told}
    rows = (f"{n * _BETWEEN_S:.1f},{watts:.2f}\n" for n, watts in means.items())
    return "".join(["t_s,power_W\n", *rows])


FORMATS = {
    "perfetto": perfetto,
    "openmetrics": openmetrics,
    "rows": rows,
    "openg2g": openg2g,
}


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="RUN", help="the directory of a run")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="compressed if it ends in .gz"
    )
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych export") -> int:
    """Write a run for other programs; returns the exit code."""
    parser = command_line(prog)
    options = parser.parse_args(arguments)
    if not any((options.directory / name).is_file() for name in RECORDS):
        parser.error(
            f"{options.directory} is no run's directory: it has no {' and no '.join(RECORDS)}"
        )
    try:
        content = FORMATS[options.to](options.directory.absolute()).encode()
        with whole_file(options.output) as path:
            path.write_bytes(gzip.compress(content) if options.output.suffix == ".gz" else content)
    except DamagedError as error:
        parser.error(str(error))
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}; name a run's directory")
    print(options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
