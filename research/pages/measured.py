"""The page of trainers that `triptych measure` measured, from the archives of their files."""

from __future__ import annotations

import json
import math
import re
import statistics
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats

from research.pages.tables import NOTICE, document, table
from workflow_lib import audit

NAME = "measured-trainers.md"
ARCHIVES = Path(__file__).parents[2] / "evidence/measured"
_HEADS = (
    *("trainer", "GPUs", "steps", "step, s", "the hook's over the calls'", "its own timing, s"),
    *("J/step", "over the recorder's", "W", "tensor cores, %", "memory, W"),
)
_SLOWER = ("slower with the sampler by means, % (95 %)", "by medians, %")


def page(_: Path) -> str:
    """What the archives say; those that are rebuilt are not needed."""
    return document(
        NOTICE,
        "# Does `triptych measure` see trainers as they are?",
        "Trainers ran on NVIDIA H100 80GB HBM3 (driver 580.159.04, torch 2.11.0) on 27 November "
        "2026, each under `triptych measure --steps hook`. All but one also call "
        "`triptych_steps`, so that the hook can be compared with it. Beside them ran a recorder: "
        "another process that wrote down the energy counters at each change. `triptych audit "
        "evidence/measured/trainers-h100x2.zip` computes energies and steps again.",
        "## On two GPUs",
        "Each trainer has a Llama of 0.95 billion parameters (Megatron-core has a GPT of as many "
        "layers), and 4 sequences of 2048 tokens a GPU and step. torchtitan and the loop in plain "
        "torch shard by FSDP2, Lightning by FSDP, DeepSpeed by ZeRO-3; transformers' Trainer has "
        "replicas; Megatron-core's GPUs share matrices and sequences. torchtitan and plain torch "
        "compile. [Their programs](../../tests/measure/trainers/programs.py) and [the archive]"
        "(../../evidence/measured/trainers-h100x2.zip) are here.",
        table(_HEADS, _rows("trainers-h100x2")),
        "*Steps, seconds and joules are those after three steps of warm-up. The hook's step is "
        "the mean of steps from one optimizer step to the next, over that from one begin of a "
        "call to the next. Tensor cores and memory are medians of readings of a GPU in those "
        "steps: NVML's GPM, and the power of the memory alone.*",
        "- Joules agree with the recorder's, of all GPUs together. With one of two GPUs, "
        "Megatron-core ran on the second, which torch calls the first.\n"
        "- A program's own timing has other steps: the loops time the host, from the third step "
        "to the last, and torchtitan means its tokens/s.",
        "## What measuring costs",
        "The sampler was stopped and continued by turns. A block is four turns: with it, twice "
        "without, with it. Steps are those within a turn, from one begin of a call to the next; "
        "a turn has their mean, or their median. On one GPU the Llama has 8 layers and half the "
        "width; the quiet one writes its attention out, so that memory bounds it and the GPU "
        "stays below its power cap.",
        table(
            ("trainer", "GPUs", "steps", "blocks", *_SLOWER, "steps 5 % too long, with, without"),
            _alternated("trainers-h100x2"),
        ),
        "No run shows a cost, and steps that are too long come as often without the sampler. None "
        "excludes a cost of 0.1 % either: steps scatter too much from turn to turn.",
        "## On one GPU",
        "A Llama of the same size, with 16 sequences a step. torchtitan has its `debugmodel`, and "
        "no line of it was touched. [Its archive](../../evidence/measured/trainers-h100x1.zip).",
        table(_HEADS, _rows("trainers-h100x1")),
        "The largest difference from the recorder is that of the shortest window, 8 s.",
    )


def _rows(name: str) -> list[list[str]]:
    """The rows of an archive."""
    path = ARCHIVES / f"{name}.zip"
    with zipfile.ZipFile(path) as archive:
        own = json.loads(archive.read("own_step_s.json"))
        recorder = _recorder(archive)
        return [
            _row(audit.Audit(run), archive, recorder, own.get(run.name))
            for run in audit.runs_below(path)
        ]


def _alternated(name: str) -> list[list[str]]:
    """What the sampler cost in each run of an archive in which it stood by turns."""
    rows = []
    with zipfile.ZipFile(ARCHIVES / f"{name}.zip") as archive:
        for member in sorted(archive.namelist()):
            if not member.endswith("/turns.csv"):
                continue
            run = member.split("/")[1]
            begins = _csv(archive, f"alternated/{run}/rank0.csv")["started_unix_s"][20:]
            steps = [(at, after - at) for at, after in pairwise(begins)]
            too_long_s = 1.05 * statistics.median(step_s for _, step_s in steps)
            turns = [tuple(map(float, line.split(b","))) for line in archive.read(member).split()]
            # Whether it ran in each turn, and the steps then. Once stopped, it is late at first.
            inside = [
                (runs, [step_s for at, step_s in steps if at > start + 0.2 and at + step_s < end])
                for (start, runs), (end, _) in pairwise(turns)
            ]
            slower = [_slower(inside, mean) for mean in (statistics.mean, statistics.median)]
            long = []
            for with_it in (True, False):
                own = [step_s for runs, of in inside if runs == with_it for step_s in of]
                long.append(f"{sum(step_s > too_long_s for step_s in own):,} of {len(own):,}")
            name, gpus, *quiet = run.split("-")
            counts = (gpus, f"{len(steps):,}", str(slower[0][0]))
            means = (by for _, by in slower)
            rows.append([" ".join([name, *quiet]), *counts, *means, ", ".join(long)])
    return rows


def _slower(
    turns: Sequence[tuple[float, Sequence[float]]], mean: Callable[[Sequence[float]], float]
) -> tuple[int, str]:
    """How many blocks of four turns there are, and how much longer steps with the sampler are."""
    logs = []
    while len(turns) > 3:
        block = turns[:4]
        whole = [runs for runs, _ in block] == [True, False, False, True]
        if whole and all(len(steps) > 5 for _, steps in block):
            a, b, c, d = (mean(steps) for _, steps in block)
            logs.append(math.log((a + d) / (b + c)))
        turns = turns[4 if whole else 1 :]
    half = 100 * stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    return len(logs), f"{100 * statistics.mean(logs):+.2f} ± {half:.2f}".replace("-", "−")


def _row(
    run: audit.Audit,
    archive: zipfile.ZipFile,
    recorder: pl.DataFrame,
    own_s: float | None,
) -> list[str]:
    values, name = run.values, run.files.name
    start, end = run.window
    gpus = [gpu["uuid"] for gpu in json.loads(archive.read(f"{name}/measured.json"))["gpus"]]
    recorded_j = 0.0
    for uuid in gpus:
        # The recorder beside one GPU called it 0.
        own = recorder.filter(pl.col("gpu").is_in([uuid, "0"]))
        # A counter is on the line between two of its changes.
        before, after = np.interp(run.window, own["unix_s"], own["mj"] / 1e3)
        recorded_j += after - before
    counters = [
        row
        for row in run.files.rows("telemetry/vm-counters.csv") or []
        if start <= float(row["unix_time_s"]) <= end
    ]
    return [
        *(
            re.sub(r"-[12]$", "", name),
            str(len(gpus)),
            f"{values['counted_steps']:.0f}",
            f"{values['step_time_s']:.4f}",
        ),
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
    calls, hook = (_csv(archive, f"{run}/steps/{name}.csv") for name in ("rank0", "hook-rank0"))
    # A call begins where the optimizer has stepped in the call before; from the fifth call on.
    begins = calls["started_unix_s"][5:]
    ends = hook["ended_unix_s"][-len(begins) - 1 : -1]
    by_calls = (begins[-1] - begins[0]) / (len(begins) - 1)
    return f"{(ends[-1] - ends[0]) / (len(ends) - 1) / by_calls:.5f}"


def _median(rows: Sequence[dict[str, str]], column: str) -> str:
    return f"{statistics.median(float(row[column]) for row in rows if row[column]):.1f}"


def _recorder(archive: zipfile.ZipFile) -> pl.DataFrame:
    """When each GPU's counter was seen to change, and mJ. One archive's has no heading."""
    lines = pl.read_csv(
        archive.read("recorder.csv"),
        has_header=False,
        new_columns=["gpu", "unix_s", "after_unix_s", "mj"],
        infer_schema=False,
    )
    changes = lines.filter(pl.col("gpu") != "gpu_uuid")
    return changes.cast({"unix_s": pl.Float64, "mj": pl.Float64})


def _csv(archive: zipfile.ZipFile, name: str) -> pl.DataFrame:
    return pl.read_csv(archive.read(name))
