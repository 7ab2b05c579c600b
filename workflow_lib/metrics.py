"""Writes the present state of runs as OpenMetrics text, for a site's Prometheus.

``triptych metrics`` prints it. With an output file it replaces that file whole, as the textfile
collector of node_exporter requires. A value that could not be read is absent, never 0.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from workflow_lib import results
from workflow_lib.live import NodeNow, RunNow, Snapshot, Watcher
from workflow_lib.options import add_results, ends_quietly
from workflow_lib.records import bounds
from workflow_lib.records.openmetrics import Family, Sample, text_of
from workflow_lib.records.whole_files import report_error, whole_file
from workflow_lib.safety import printable
from workflow_lib.status import STATES

#: how many letters of a failure's cause a label holds
_CAUSE_LETTERS = 200


class Reading(NamedTuple):
    """The metric that a column becomes."""

    family: Family
    #: factor from the column's unit to the metric's
    scale: float = 1.0
    labels: Mapping[str, str] = {}


_RUNS = Family("triptych_runs", "gauge", "", "runs in each state")
_FAILED = Family("triptych_run_failed", "gauge", "", "1 for a run that failed, with its cause")
_STEPS_DONE = Family("triptych_run_steps_done", "gauge", "", "steps of the run, warm-up included")
_STEPS_ASKED = Family("triptych_run_steps_asked", "gauge", "", "steps that the run will do")
_SPEED = Family("triptych_run_tokens_per_second", "gauge", "", "over the last 10 steps")
_SAMPLED = Family(
    "triptych_node_sampled_timestamp_seconds", "gauge", "seconds", "the last sample, Unix time"
)
_HELD = Family(
    "triptych_gpu_throttled", "gauge", "", "1 while the reason holds the GPU's clock down, else 0"
)
_THROTTLED = Family(
    "triptych_gpu_throttled_seconds", "counter", "seconds", "time that the reason held the clock"
)
_ECC = Family("triptych_gpu_ecc_errors", "counter", "", "memory errors since the driver loaded")


def _gauge(name: str, about: str, scale: float = 1.0) -> Reading:
    """A reading whose metric ends in its unit."""
    return Reading(Family(name, "gauge", name.rpartition("_")[2], about), scale)


OF_GPU: Mapping[str, Reading] = {
    "power_w": _gauge("triptych_gpu_power_watts", "board or package power"),
    "temperature_c": _gauge("triptych_gpu_temperature_celsius", "of the core or hotspot"),
    "memory_temperature_c": _gauge("triptych_gpu_memory_temperature_celsius", "of the memory"),
    "sm_clock_mhz": _gauge("triptych_gpu_sm_clock_hertz", "of the multiprocessors", 1e6),
    "utilisation_percent": _gauge(
        "triptych_gpu_utilisation_ratio", "time with a kernel running", 0.01
    ),
    "memory_used_bytes": _gauge("triptych_gpu_memory_used_bytes", "device memory in use"),
    "energy_j": Reading(
        Family("triptych_gpu_energy_joules", "counter", "joules", "the driver's own counter")
    ),
    "throttle_power_cap_s": Reading(_THROTTLED, labels={"reason": "power_cap"}),
    "throttle_sw_thermal_s": Reading(_THROTTLED, labels={"reason": "sw_thermal"}),
    "throttle_hw_thermal_s": Reading(_THROTTLED, labels={"reason": "hw_thermal"}),
    "throttle_power_brake_s": Reading(_THROTTLED, labels={"reason": "power_brake"}),
    "ecc_corrected_errors": Reading(_ECC, labels={"kind": "corrected"}),
    "ecc_uncorrected_errors": Reading(_ECC, labels={"kind": "uncorrected"}),
}
OF_NODE: Mapping[str, Reading] = {
    "node_power_w": _gauge("triptych_node_power_watts", "the whole node's"),
    "inlet_temperature_c": _gauge("triptych_node_inlet_temperature_celsius", "air at the inlet"),
    "cpu_temperature_c": _gauge("triptych_node_cpu_temperature_celsius", "hottest package"),
}
#: every metric, in the order of the text
FAMILIES = tuple(
    dict.fromkeys(
        (
            *(_RUNS, _FAILED, _STEPS_DONE, _STEPS_ASKED, _SPEED, _SAMPLED),
            *(reading.family for reading in OF_NODE.values()),
            *(reading.family for reading in OF_GPU.values()),
            _HELD,
        )
    )
)


def openmetrics(snapshot: Snapshot) -> str:
    """The snapshot as OpenMetrics text. A metric without a value is left out."""
    return text_of(FAMILIES, _samples(snapshot))


def _samples(snapshot: Snapshot) -> Iterator[Sample]:
    states = Counter(run.status.state for run in snapshot.runs)
    for state in STATES:
        yield _RUNS, {"state": state}, states[state]
    for run in snapshot.runs:
        yield from _of_run(run)


def _of_run(run: RunNow) -> Iterator[Sample]:
    status = run.status
    labels = {"cell": status.cell, "run": results.run_name(status.run)}
    if status.state == "failed":
        cause = printable(" ".join((status.cause or "").split()), _CAUSE_LETTERS)
        yield _FAILED, {**labels, "outcome": status.outcome or "", "cause": cause}, 1
    if status.state != "running":
        return
    for family, value in (
        (_STEPS_DONE, status.steps_done),
        (_STEPS_ASKED, run.steps_asked),
        (_SPEED, run.tokens_per_s),
    ):
        if value is not None:
            yield family, labels, value
    for node in run.nodes:
        yield from _of_node(node, {**labels, "node": node.node})


def _of_node(node: NodeNow, labels: Mapping[str, str]) -> Iterator[Sample]:
    if node.sampled_unix_s is not None:
        yield _SAMPLED, {**labels, "source": node.source}, node.sampled_unix_s
    yield from _read(OF_NODE, node.readings, labels)
    for gpu in node.gpus:
        own = {**labels, "gpu": str(gpu.gpu)}
        yield from _read(OF_GPU, gpu.readings, own)
        for reason, held in (gpu.throttled or {}).items():
            yield _HELD, {**own, "reason": reason}, int(held)


def _read(
    known: Mapping[str, Reading], readings: Mapping[str, float], labels: Mapping[str, str]
) -> Iterator[Sample]:
    for column, reading in known.items():
        if column in readings:
            value = readings[column]
            scaled = value if reading.scale == 1 else value * reading.scale
            yield reading.family, {**labels, **reading.labels}, scaled


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    add_results(parser)
    parser.add_argument(
        "--output", type=Path, help="replace this file, for example triptych.prom; else printed"
    )
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.metrics"
) -> int:
    """Write the text. Returns the exit code: 1 after one message if nothing was written, and 1 if a
    file could not be read, so that its run is missing."""
    options = command_line(prog).parse_args(arguments)
    try:
        if not options.results.is_dir():
            raise NotADirectoryError(f"{options.results} is not a directory; give --results")
        snapshot = Watcher(options.results).look(time.time())
        text = openmetrics(snapshot)
        if options.output is None:
            # OpenMetrics is UTF-8, whatever the terminal's encoding.
            sys.stdout.buffer.write(text.encode())
        else:
            with whole_file(options.output) as draft:
                draft.write_text(text, encoding="utf-8")
    except OSError as error:
        return report_error("triptych", error)
    for problem in snapshot.problems:
        print(printable(f"triptych: {problem}", bounds.MESSAGE_LETTERS.most), file=sys.stderr)
    return 1 if snapshot.problems else 0


if __name__ == "__main__":
    sys.exit(main())
