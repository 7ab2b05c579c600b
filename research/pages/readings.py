"""docs/results/readings.md: how well the runs of the evidence were read, from the rebuilt tables.

It has what explanation/measurement.md says of readings in numbers: the energy by two ways, bytes
over links beside arithmetic, memory beside what was expected, what the sampler takes and costs, and
clocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from research.grouping import grouped
from research.pages import findings
from research.pages.parts import names_of, percent
from research.pages.tables import document, table
from workflow_lib.formulas import parameters
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_record
from workflow_lib.records.labels import labels
from workflow_lib.records.paths import RunPaths, SweepPaths
from workflow_lib.records.tables import CELLS, GPUS, OVERHEAD, PLAN, RUNS
from workflow_lib.report.figures.numbers import NOTHING
from workflow_lib.results import run_directory
from workflow_lib.table_files import read_table
from workflow_lib.words import counted

Row = dict[str, Any]

NAME = "readings.md"

#: sweeps of the table of memory
_OF_MEMORY = (findings.TRAINERS, findings.TRAINERS_LAYOUTS, findings.DEEPSPEED)
_MEMORY = ("memory_peak_bytes", "memory_reserved_peak_bytes", "memory_used_peak_bytes")
#: bytes of a number in the precision that is gathered or sent, and in that of reduced gradients
_BF16, _FP32 = 2, 4


def page(rebuilt: Path) -> str:
    """The page of the tables of all sweeps."""
    sweeps = findings.sweeps_of(rebuilt)
    layouts = findings.directory_of(rebuilt, findings.LAYOUTS)
    return document(
        findings.NOTICE,
        "# How well were the runs read?",
        "These numbers are about the readings of the runs in [the archives]"
        "(../../evidence/README.md), not about training. [Measurement]"
        "(../explanation/measurement.md) says what each reading is.",
        "## Energy, both ways",
        energy(sweeps),
        "## Bytes over links",
        "Bytes that a GPU sent over its links in a step of Llama 3 8B on two H200, by the counters "
        "of the links, as a mean over the GPUs of three runs. The arithmetic is of a ring, where a "
        "GPU sends (n − 1)/n of what is gathered or scattered.",
        "\n".join(links(layouts)),
        "## Memory",
        "Of the fullest GPU, in 10⁹ bytes, the largest of a layout's runs of the whole Llama 3 8B "
        f"on two GPUs ({', '.join(f'`{sweep}`' for sweep in _OF_MEMORY)}). “At least” means that "
        "ranks asked the driver after the allocator had returned blocks. Cells without a "
        "backend's name are those of torch; in the last of these sweeps, those of DeepSpeed.",
        "\n".join(memory(*(findings.directory_of(rebuilt, sweep) for sweep in _OF_MEMORY))),
        "## What the sampler takes",
        "CPU time of the busiest node's sampler over the measured steps, as a share of one core, "
        "at 10 readings of each GPU a second.",
        "\n".join(sampler(sweeps)),
        "## What sampling costs training",
        costs(sweeps),
        "## Clocks of several nodes",
        clocks(sweeps),
    )


def _done(sweep: Path) -> list[Row]:
    runs = read_table(SweepPaths(sweep).table("runs"), RUNS).to_dicts()
    return [run for run in runs if run["outcome"] == "completed" and not run["simulated"]]


def _of_cells(sweep: Path) -> Iterator[tuple[str, str, list[Row]]]:
    """The cells of a sweep: each identity, label and completed runs."""
    cells, runs = read_table(SweepPaths(sweep).table("cells"), CELLS).to_dicts(), _done(sweep)
    for row, label in zip(cells, labels(cells), strict=True):
        yield row["cell"], label, [run for run in runs if run["cell"] == row["cell"]]


def energy(sweeps: Sequence[Path]) -> str:
    """How far the energies of all GPU-runs by the two ways differ, in a sentence."""
    # Sweeps that share a cell may both hold a run of it, which counts once.
    found = {
        (row["cell"], row["run"], row["gpu_uuid"], row["energy_j"]): row
        for sweep in sweeps
        for row in read_table(SweepPaths(sweep).table("gpus"), GPUS).to_dicts()
        if not row["simulated"]
    }
    rows = list(found.values())
    shares = [abs(row["energy_difference"]) for row in rows if row["energy_difference"] is not None]
    lacking = f", {len(shares)} of which have both" if len(shares) < len(rows) else ""
    middle, high, most = (100 * float(np.quantile(shares, share)) for share in (0.5, 0.95, 1.0))
    return (
        "The integral of power over the increase of the driver's energy counter, less 1, without "
        f"its sign. Of {counted(len(rows), 'GPU-run')}{lacking}: median {middle:.3f} %, 95th "
        f"percentile {high:.3f} %, largest {most:.2f} %."
    )


def links(sweep: Path) -> Iterator[str]:
    """Lines of the table of bytes that a GPU sends in a step of each cell."""
    yield "| layout | counted, GB a step | arithmetic | difference | what the arithmetic adds up |"
    yield "|---|---|---|---|---|"
    for identity, label, own in _of_cells(sweep):
        steps = [
            run["gpu_link_sent_bytes"] / run["measured_steps"] / run["gpus"]
            for run in own
            if run["gpu_link_sent_bytes"] is not None
        ]
        if not steps:
            continue
        cell = read_record(RunPaths(run_directory(sweep.parents[1], identity, 1)).cell, Cell)
        counted_gb, known = fmean(steps) / 1e9, arithmetic(cell)
        if known is None:
            yield f"| `{label}` | {counted_gb:.6g} | – | – | not worked out |"
            continue
        expected_gb, words = known[0] / 1e9, known[1]
        off = percent(counted_gb / expected_gb - 1, 3)
        yield f"| `{label}` | {counted_gb:.6g} | {expected_gb:.6g} | {off} | {words} |"


def arithmetic(cell: Cell) -> tuple[float, str] | None:
    """Bytes that a GPU sends in a step, and what they are in words; None for layouts of which it
    was not worked out. Gradients are reduced in fp32, weights gathered and activations sent in
    bf16, as ``explanation/training.md`` lists.
    """
    degrees, training, model = cell.degrees, cell.training, cell.model
    count = parameters(model, model.padded_vocabulary_size)
    passes = training.micro_batches(degrees.dp)
    plain = degrees.tp == degrees.cp == degrees.ep == 1 and training.precision == "bf16"
    if plain and degrees.pp == 1 and degrees.dp > 1 and training.backend == "torch":
        share = (degrees.dp - 1) / degrees.dp
        if training.zero_stage == 1:
            return share * (_FP32 + _BF16) * count.total, (
                f"{share:g} · ({_FP32} + {_BF16}) B · {count.total:,}: gradients in fp32 "
                "scattered, weights in bf16 gathered, once a step"
            )
        if training.zero_stage == 3:
            # The head is needed by no layer between its passes, and is gathered once.
            head = _BF16 * count.output_head
            return passes * share * ((2 * _BF16 + _FP32) * count.total - head), (
                f"{passes} micro-batches · {share:g} · ((2 · {_BF16} + {_FP32}) B · "
                f"{count.total:,} − {_BF16} B · {count.output_head:,}): weights gathered twice, "
                "the head's once, gradients scattered"
            )
    if plain and degrees.pp == 2 and degrees.dp == 1 and degrees.virtual_stages == 1:
        sent = training.micro_batch_size * model.sequence_length * model.hidden_size
        return _BF16 * passes * sent, (
            f"{passes} micro-batches · {_BF16} B · {model.sequence_length} · {model.hidden_size}: "
            "activations, or their gradients"
        )
    return None


def memory(*sweeps: Path) -> Iterator[str]:
    """Lines of the table of the memory of each cell, and a sentence on what is not allocated."""
    plans = (read_table(SweepPaths(sweep).plan, PLAN).to_dicts() for sweep in sweeps)
    expected = {row["cell"]: row["memory_used_per_gpu_bytes"] for plan in plans for row in plan}
    runtimes, kept = list[float](), list[float]()
    yield "| layout | allocated | reserved | used | expected over used, less 1 | runs |"
    yield "|---|---|---|---|---|---|"
    for identity, label, own in chain.from_iterable(map(_of_cells, sweeps)):
        known = [[run[name] for run in own] for name in _MEMORY]
        if not own or any(None in values for values in (*known, [expected[identity]])):
            continue
        allocated, reserved, used = (max(values) / 1e9 for values in known)
        over = percent(expected[identity] / 1e9 / used - 1)
        kept.append(reserved / allocated - 1)
        if used > reserved:
            runtimes.append(used - reserved)
            told, error = f"{used:.1f}", over
        else:
            told, error = f"at least {used:.1f}", f"below {over}"
        yield f"| `{label}` | {allocated:.1f} | {reserved:.1f} | {told} | {error} | {len(own)} |"
    if runtimes:
        yield ""
        others = dict.fromkeys(f"{end:.1f}" for end in (min(runtimes), max(runtimes)))
        yield (
            f"Blocks that torch's allocator kept took {100 * min(kept):.0f} to "
            f"{100 * max(kept):.0f} % of what was allocated. All else on the GPU took "
            f"{' to '.join(others)} GB, of those layouts of which it is known."
        )


def sampler(sweeps: Sequence[Path]) -> Iterator[str]:
    """Lines of the table of what the sampler takes, by GPUs of a node and their model."""
    # Sweeps that share a cell may both hold a run of it, which counts once.
    runs = {
        (run["cell"], run["started_unix_s"]): run
        for sweep in sweeps
        for run in _done(sweep)
        if run["sampler_cpu_share"] is not None and run["sample_rate_hz"] == 10
    }
    found = grouped(runs.values(), lambda run: (run["gpus"] // run["nodes"], run["gpu_name"]))
    yield "| GPUs of a node | GPU | runs | lowest | mean | highest |"
    yield "|---|---|---|---|---|---|"
    for (gpus, name), of_node in sorted(found.items()):
        shares = [run["sampler_cpu_share"] for run in of_node]
        ends = min(shares), fmean(shares), max(shares)
        told = " | ".join(f"{100 * share:.2f} %" for share in ends)
        yield f"| {gpus} | {name} | {len(shares)} | {told} |"


def costs(sweeps: Sequence[Path]) -> str:
    """What sampling costs, as a table of runs whose sampling rates alternate."""
    rows = [row for sweep in sweeps for row in _costs(sweep)]
    if not rows:
        return "The rates alternate in no run of the archives."
    heads = ("run", "step, s", "readings a second", "slower by", "95 % interval", "pairs")
    return "\n".join(
        [
            "Rates alternate within a run, in blocks. The steps of each block are set beside those "
            "of the nearest block without sampling, by their medians; [how it is measured]"
            "(../how-to/measure-what-sampling-costs.md) says how. A value below 0 is noise.",
            "",
            *table((*heads, "CPU, share of a core", "delivered"), rows),
        ]
    )


def _costs(sweep: Path) -> Iterator[tuple[str, ...]]:
    """The table's rows, one for each run and rate."""
    named = names_of(read_table(SweepPaths(sweep).table("cells"), CELLS).to_dicts())
    for row in read_table(SweepPaths(sweep).table("overhead"), OVERHEAD).to_dicts():
        slower = row["slowdown"]
        if row["simulated"] or slower is None:
            continue
        ends = [row["slowdown_low"], row["slowdown_high"]]
        yield (
            f"{row['run']} of `{named[row['cell']]}` in `{sweep.name}`",
            *(f"{row['step_time_s']:.4f}", f"{row['sample_rate_hz']:g}", percent(slower, 2)),
            " to ".join(percent(end, 2) for end in ends) if None not in ends else NOTHING,
            *(str(row["pairs"]), percent(row["sampler_cpu_share"], 2, "")),
            percent(row["achieved_rate_hz"] / row["sample_rate_hz"], 0, ""),
        )


def clocks(sweeps: Sequence[Path]) -> str:
    """How far clocks of several nodes differed, in a sentence."""
    runs = [
        run
        for sweep in sweeps
        for run in _done(sweep)
        if run["nodes"] > 1 and run["clock_skew_s"] is not None
    ]
    skews = [1e6 * run["clock_skew_s"] for run in runs]
    errors = [1e6 * run["clock_error_s"] for run in runs]
    emulated = (
        " on emulated nodes, which share one clock" if all(r["emulated"] for r in runs) else ""
    )
    return (
        f"{counted(len(runs), 'run')}{emulated}: the largest difference that was found is "
        f"{max(skews):.1f} µs, and the error that may remain is {min(errors):.0f} to "
        f"{max(errors):.0f} µs."
    )
