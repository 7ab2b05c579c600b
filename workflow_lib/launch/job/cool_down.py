"""Waits until every GPU of a job is as cool as its cell asks, according to the samplers' files.

No work runs on the GPUs meanwhile, so they only cool. A sample that is read late shows more than
the present temperature, so it never ends the wait too early.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from workflow_lib.launch.processes import is_running
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import CoolDown, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import GPU_SAMPLES
from workflow_lib.records.whole_files import write_json

#: how often the samples are looked at
LOOK_EVERY_S = 1.0
#: how much of a file's end is read: more than a node writes within a second, at 50 Hz
_TAIL_BYTES = 1 << 17

_NAMES = [column.name for column in GPU_SAMPLES]
_GPU, _TEMPERATURE = map(_NAMES.index, ("gpu", "temperature_c"))


def cool_down(paths: RunPaths, process: int) -> None:
    """Wait for cool GPUs, at most as long as the cell allows, and write ``cool-down.json``.

    ``process`` is the process id of the samplers' launcher. Raises SystemExit with a message if
    that process ends, or if a GPU reports no temperature.
    """
    cell = read_record(paths.cell, Cell)
    wanted_c, limit_s = cell.telemetry.cool_down_to_c, cell.telemetry.cool_down_limit_s
    if wanted_c is None:
        raise SystemExit(f"{paths.cell} asks for no cool-down: cool_down_to_c is null")
    started_unix_s, began = time.time(), time.monotonic()
    before_c: float | None = None
    while True:
        if not is_running(process):
            raise SystemExit(
                f"telemetry ended during the cool-down; see {paths.logs}/telemetry.log"
            )
        hottest_c = _hottest_c(paths)
        before_c = hottest_c if before_c is None else before_c
        waited_s = time.monotonic() - began
        reached = hottest_c is not None and hottest_c <= wanted_c
        if reached or waited_s >= limit_s:
            break
        time.sleep(min(LOOK_EVERY_S, limit_s - waited_s))
    if hottest_c is None or before_c is None:
        raise SystemExit(
            f"the cell asks for GPUs at {wanted_c:g} °C at most, but some reported no "
            f"temperature for {waited_s:.0f} s; see {paths.telemetry}, or leave cool_down out of "
            "the sweep"
        )
    done = CoolDown(started_unix_s, waited_s, reached, before_c, hottest_c)
    write_json(paths.cool_down, done)
    if not reached:
        print(
            f"triptych: after {waited_s:.0f} s the hottest GPU is still at {hottest_c:g} °C, above "
            f"the {wanted_c:g} °C that the cell asks for; training starts anyway",
            file=sys.stderr,
        )


def _hottest_c(paths: RunPaths) -> float | None:
    """The highest temperature of all nodes' GPUs in their latest samples, in °C; None if a GPU has
    none.
    """
    temperatures: list[float | None] = []
    for node in paths.sampled_nodes():
        gpus = len(read_record(paths.telemetry_start(node), TelemetryStart).gpus)
        latest = _latest_c(paths.gpu_samples(node))
        temperatures += [latest.get(gpu) for gpu in range(gpus)]
    known = [temperature for temperature in temperatures if temperature is not None]
    return max(known) if known and len(known) == len(temperatures) else None


def _latest_c(path: Path) -> dict[int, float]:
    """GPU → the last temperature, in °C, in the last 128 KiB of a node's samples."""
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL_BYTES))
        text = stream.read(_TAIL_BYTES).decode("ascii", "replace")
    latest = {}
    # The first line is the header or incomplete. The text after the last newline is incomplete.
    for line in text.split("\n")[1:-1]:
        fields = line.split(",")
        if len(fields) == len(_NAMES) and fields[_TEMPERATURE]:
            # A damaged line is reported when the run ends; here another line will do.
            with contextlib.suppress(ValueError):
                latest[int(fields[_GPU])] = float(fields[_TEMPERATURE])
    return latest
