"""The page of trainers that `triptych measure` measured, from the archive of their files."""

from __future__ import annotations

import csv
import io
import json
import statistics
import zipfile
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

from research.pages import findings
from research.pages.tables import NOTICE, document, table
from workflow_lib import audit

NAME = "measured-trainers-h100x1.md"
ARCHIVE = Path(__file__).parents[2] / "evidence/measured/trainers-h100x1.zip"
_HEADS = (
    *("trainer", "steps", "step, s", "the hook's over the calls'", "its own timing, s"),
    *("J/step", "over the recorder's", "W", "tensor cores, %", "memory, W"),
)


def files(rebuilt: Path) -> dict[Path, str]:
    """The page: its path and text. ``rebuilt`` is not needed."""
    return {findings.DIRECTORY / NAME: page()}


def page() -> str:
    """What the archive says."""
    with zipfile.ZipFile(ARCHIVE) as archive:
        own = json.loads(archive.read("own_step_s.json"))
        recorder = _recorder(archive.read("recorder.csv").decode())
        rows = [
            _row(audit.Audit(run), archive, recorder, own.get(run.name))
            for run in audit.runs_below(ARCHIVE)
        ]
    return document(
        NOTICE,
        "# Does `triptych measure` see trainers as they are?",
        "Five trainers ran on one NVIDIA H100 80GB HBM3 (driver 580.159.04, torch 2.11.0) on 27 "
        "November 2026, each under `triptych measure --steps hook`. No line of torchtitan was "
        "touched. The others also call `triptych_steps`, so that the hook can be compared with "
        "it. [The archive](../../evidence/measured/trainers-h100x1.zip) has their files, and "
        "those of a recorder: another process that wrote down the energy counter at each change.",
        table(_HEADS, rows),
        "*Steps, seconds and joules are those after three steps of warm-up. The hook's step is "
        "the mean of steps from one optimizer step to the next, over that from one begin of a "
        "call to the next. Tensor cores and memory are medians of readings in those steps: NVML's "
        "GPM, and the power of the memory alone.*",
        "- The hook and the calls tell one step time, well within 0.1 %. The hook has one step "
        "less, because nobody knows when the first one began.\n"
        "- Joules agree with the recorder's within 0.3 %; the largest difference is that of the "
        "shortest window, 8 s.\n"
        "- What measuring costs was tried in two runs alone and one measured, of the Trainer: "
        "0.6329 and 0.6314 s alone, 0.6320 s measured. Three runs decide nothing below 0.2 %.\n"
        "- The models differ, so the rows do not rank the trainers: torchtitan has its "
        "`debugmodel`, and only the loop in plain torch is compiled.",
        "`triptych audit evidence/measured/trainers-h100x1.zip` computes energies and steps again.",
    )


def _row(
    run: audit.Audit,
    archive: zipfile.ZipFile,
    recorder: Sequence[tuple[float, float]],
    own_s: float | None,
) -> list[str]:
    values, name = run.values, run.files.name
    start, end = run.window
    recorded_j = _at(recorder, end) - _at(recorder, start)
    counters = [
        row
        for row in run.files.rows("telemetry/vm-counters.csv") or []
        if start <= float(row["unix_time_s"]) <= end
    ]
    return [
        *(name, f"{values['counted_steps']:.0f}", f"{values['step_time_s']:.4f}"),
        _hook_over_calls(archive, name),
        "–" if own_s is None else f"{own_s:.4f}",
        f"{values['energy_per_step_j']:.1f}",
        f"{values['energy_j'] / recorded_j:.4f}",
        f"{values['power_mean_w']:.1f}",
        *(_median(counters, column) for column in ("tensor_active_percent", "memory_power_w")),
    ]


def _hook_over_calls(archive: zipfile.ZipFile, run: str) -> str:
    """The mean step by the hook over that by calls, of the same steps; – without calls."""
    if f"{run}/steps/hook-rank0.csv" not in archive.namelist():
        return "–"
    calls, hook = (
        list(csv.DictReader(io.StringIO(archive.read(f"{run}/steps/{name}.csv").decode())))
        for name in ("rank0", "hook-rank0")
    )
    # A call begins where the optimizer has stepped in the call before; from the fifth call on.
    begins = [float(row["started_unix_s"]) for row in calls][5:]
    ends = [float(row["ended_unix_s"]) for row in hook][-len(begins) - 1 : -1]
    by_calls = (begins[-1] - begins[0]) / (len(begins) - 1)
    return f"{(ends[-1] - ends[0]) / (len(ends) - 1) / by_calls:.5f}"


def _median(rows: Sequence[dict[str, str]], column: str) -> str:
    return f"{statistics.median(float(row[column]) for row in rows if row[column]):.1f}"


def _recorder(text: str) -> list[tuple[float, float]]:
    """When the counter was seen to change, and J."""
    lines = (line.split(",") for line in text.splitlines() if line.count(",") == 3)
    return [(float(before), float(mj) / 1e3) for _, before, _, mj in lines]


def _at(series: Sequence[tuple[float, float]], moment: float) -> float:
    """The counter at a moment, on the line between two of its changes."""
    after = bisect_left(series, (moment, 0.0))
    (t1, j1), (t2, j2) = series[after - 1], series[after]
    return j1 + (j2 - j1) * (moment - t1) / (t2 - t1)
