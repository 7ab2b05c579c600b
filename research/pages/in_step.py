"""docs/results/in-step.md: how far energies are off where passes keep in step with the counter."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from functools import cache
from math import nan
from pathlib import Path
from statistics import fmean, median, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zipfile import ZipFile

from research.grouping import grouped
from research.pages import findings
from research.pages.tables import NOTICE, document, table
from workflow_lib.cells import expand_study, merge
from workflow_lib.measure.summary import summarise
from workflow_lib.power_errors import LOOK_S, in_step_share
from workflow_lib.projection.planned import step_time
from workflow_lib.records.cell import Cell
from workflow_lib.study import load_study

NAME = "in-step.md"
_MEASURED = findings.CHECKOUT / "evidence" / "measured"
#: passes that nearly fill their period; and short ones with the GPU idle between them, on the GPU
#: that power_errors' share was set by, and on two others
LONG, SHORT, OTHERS = (
    _MEASURED / f"in-step-{name}.zip" for name in ("h200x1", "short-h200x1", "short-h200x2")
)
#: sweeps of the study's cells
_ITS = ("parallelism", "microbatch", "optimisation", "lora")
#: looks whose swing is as large as their mean
_WIDE = [(tick * LOOK_S, 1.5 - tick % 2) for tick in range(100)]
#: passes of a start, before power is steady
_LEFT_OUT = 10


class Start(NamedTuple):
    """One start of a load: its kind, and powers in W."""

    gpu: str
    period_ms: float
    wait_ms: float
    tokens: int
    counter_w: float
    samples_w: float
    #: ``energy_error_share`` and ``energy_difference`` without its sign
    stated: float
    apart: float
    #: mean time of a pass, less the wait before it; NaN where it was not recorded
    busy_ms: float


Kind = Sequence[Start]


@cache
def kinds(path: Path) -> list[Kind]:
    """The starts of each kind, of one GPU."""
    of_kinds = grouped(_starts(path), lambda start: (start.gpu, start.period_ms, start.wait_ms))
    return [of_kinds[kind] for kind in sorted(of_kinds)]


def _starts(path: Path) -> Iterator[Start]:
    """Each start that has an energy by the counter, as ``triptych measure`` would have summarised
    it alone."""
    with TemporaryDirectory() as scratch, ZipFile(path) as archive:
        archive.extractall(scratch)
        for log in sorted(Path(scratch).rglob("log.txt")):
            yield from _of_log(log)


def _of_log(log: Path) -> Iterator[Start]:
    run = log.with_name("run")
    steps = run / "steps" / "rank0.csv"
    rows = list(csv.DictReader(steps.open(encoding="utf-8", newline="")))
    known = json.loads((run / "measured.json").read_bytes())
    lines = log.read_text("utf-8").splitlines()
    for line in (line for line in lines if line.startswith("SEGMENT ")):
        told = json.loads(line.removeprefix("SEGMENT "))
        first, last = told["first"] + _LEFT_OUT, told["last"]
        with steps.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            mine = (row for row in rows if first <= int(row["step"]) <= last)
            writer.writerows({**row, "phase": "measured"} for row in mine)
        values = summarise(run, known)["values"]
        if "energy_error_share" in values:
            yield _start(known["gpus"][0]["uuid"], told, values)


def _start(gpu: str, told: dict[str, Any], values: dict[str, float]) -> Start:
    joules = values["energy_j"], values["energy_integral_j"]
    counter_w, samples_w = (each / values["measured_duration_s"] for each in joules)
    of_load = round(1e3 * told["period_s"]), 1e3 * told["dither_s"], told["tokens"]
    stated, apart = values["energy_error_share"], abs(samples_w / counter_w - 1)
    busy_ms = 1e3 * fmean(told.get("busy_s", [])[_LEFT_OUT:] or [nan])
    return Start(gpu, *of_load, counter_w, samples_w, stated, apart, busy_ms)


def finding() -> str:
    """What the sensor hides, in two sentences."""
    short, others = kinds(SHORT), kinds(OTHERS)
    of_gpus = {start.gpu for kind in (*short, *others) for start in kind}
    off = [each for kind in (*short, *others) if _is_in_step(kind) for _, each, _ in _off(kind)]
    judged = _in_step(others)
    return (
        "Where forward and backward passes keep in step with its period, an H200's energy counter "
        f"is off by {_ends(off)} %: {len(off)} starts of the same work on {len(of_gpus)} GPUs. "
        "Runs say so "
        f"themselves, by a rule set on one of these; on the others it held in {_within(judged)} of "
        f"{len(judged)} starts."
    )


def page(_rebuilt: Path) -> str:
    """The page; its runs are of no sweep."""
    short, others, long = kinds(SHORT), kinds(OTHERS), kinds(LONG)
    set_by, judged = _in_step(short), _in_step(others)
    waiting = [kind for kind in long if kind[0].period_ms == 100]
    busy = [
        start.busy_ms / fmean(each.busy_ms for each in kind) - 1
        for kind in others
        if _is_in_step(kind)
        for start in kind
    ]
    return document(
        NOTICE,
        "# What does energy miss in training that keeps in step with the counter?",
        "Forward and backward of four layers of Llama 3 8B's size on four H200, each pass begun by "
        "the clock, under `triptych measure`. All starts of a kind do the same work at the same "
        "pace, in another phase to the sensor, so their energies should be equal. The counter is "
        "renewed every 100 ms, the driver's samples every 20 ms.",
        "## Short passes, and a GPU that idles between them",
        "3,072 tokens, 32 to 35 ms of work, [on one GPU](../../evidence/measured/"
        "in-step-short-h200x1.zip) and [on two others](../../evidence/measured/"
        "in-step-short-h200x2.zip). Starts are left out whose counter was not read near enough to "
        "their ends:",
        _table(short + others),
        "At 60 and 100 ms each start is off the others of its kind by up to 8 %, and the counter "
        "and the samples may agree: they see the same moments. It is the sensor that differs, not "
        "the GPU: a pass took the same time in all starts of a kind, within "
        f"{_ends(busy)} %. `energy_error_share` is set so that it holds in "
        f"{_within(set_by)} of the first GPU's {len(set_by)} starts in step. On the other two it "
        f"holds in {_within(judged)} of {len(judged)}; the difference of counter and samples does "
        f"in {sum(off <= apart for off, _, apart in judged)}.",
        "## Passes that fill their period, at the power limit",
        "[7,400 to 8,000 tokens](../../evidence/measured/in-step-h200x1.zip), 97 % of the time; "
        "sequences differ by up to 1.4 %, which moves power by up to 1 %. Some with a random wait "
        "of 0 to 20 ms after each pass:",
        _table(long),
        "In step, it is the counter that is off here. A random wait lessens that, at a tenth of "
        "the throughput. Its joules cannot be taken off again: as if the GPU drew "
        f"{_waiting_w(waiting):.0f} W while it waits, because at the limit the next pass may draw "
        "what a wait spared. [In real training](readings.md#energy-both-ways) the two seldom "
        "differ.",
        "## What did the study miss?",
        *_of_the_study(),
    )


def _of_the_study() -> Iterator[str]:
    """How far its energies may be off in step, by projected times of its cells."""
    study = load_study(findings.CHECKOUT / "config")
    views = [view for name, view in expand_study(study).items() if name.split("-")[0] in _ITS]
    planned_cells = [plan.cell for plan, _ in merge(views).values() if plan.feasible]
    times = [(cell, step_time(cell)) for cell in planned_cells]
    known = [(time.s, time.s / _passes(cell)) for cell, time in times if time is not None]
    step_s, pass_s = (min(each[place] for each in known) for place in (0, 1))
    middle_s = median(each for _, each in known)
    by_steps, by_passes, by_half = (
        100 * in_step_share(_WIDE, each) for each in (step_s, pass_s, middle_s)
    )
    yield (
        f"It polled the same sensors. By projection, the {len(known)} of its {len(times)} cells "
        f"here whose time can be projected take {step_s:.1f} s a step or more, and "
        f"{1e3 * pass_s:.0f} ms or more for the passes of a micro-batch on a "
        "stage. Take power to swing by as much as its mean, which is more than in all but one "
        "layout of ours. In step by its steps, an energy is then off by "
        f"{by_steps:.2f} % at most. In step by micro-batches, one step is off by {by_passes:.0f} % "
        f"at most ({by_half:.1f} % in the cell of the median), and ten steps, each in another "
        f"phase, by about {by_passes / 10**0.5:.0f} %."
    )


def _passes(cell: Cell) -> float:
    """Times of a micro-batch on a stage, one after the other, in a step: 1F1B's."""
    training, degrees = cell.training, cell.degrees
    own = training.global_batch_size / (training.micro_batch_size * degrees.dp)
    return own + degrees.pp - 1


def _is_in_step(kind: Kind) -> bool:
    return kind[0].period_ms != 93


def _in_step(every: Sequence[Kind]) -> list[tuple[float, float, float]]:
    """Of each start in step: how far its counter is off its kind, ``stated`` and ``apart``."""
    return [
        (abs(counter), start.stated, start.apart)
        for kind in every
        if _is_in_step(kind)
        for start, counter, _ in _off(kind)
    ]


def _within(starts: Sequence[tuple[float, float, float]]) -> int:
    return sum(off <= stated for off, stated, _ in starts)


def _words(start: Start) -> str:
    wait = f" and 0 to {start.wait_ms:.0f} ms" if start.wait_ms else ""
    return f"{start.period_ms:.0f} ms{wait}"


def _table(every: Sequence[Kind]) -> list[str]:
    heads = ("W", "counter, %", "deviation", "samples, %", "counter less samples, %", "stated, ± %")
    return table(("GPU", "passes", "starts", *heads), map(_kind_row, every))


def _kind_row(kind: Kind) -> Iterator[str]:
    off = list(_off(kind))
    counter, samples = ([each[place] for each in off] for place in (1, 2))
    yield from (kind[0].gpu[4:8], _words(kind[0]), str(len(kind)))
    yield f"{fmean(start.counter_w for start in kind):.0f}"
    yield _ends(counter)
    yield f"{100 * stdev(counter):.2f}"
    yield _ends(samples)
    yield _ends([start.counter_w / start.samples_w - 1 for start in kind])
    stated = [100 * start.stated for start in kind]
    yield f"{min(stated):.1f} to {max(stated):.1f}"


def _off(kind: Kind) -> Iterator[tuple[Start, float, float]]:
    """Each start, and how far its two powers are off the means of its kind: shares."""
    counter, samples = (
        fmean(getattr(start, name) for start in kind) for name in ("counter_w", "samples_w")
    )
    for start in kind:
        yield start, start.counter_w / counter - 1, start.samples_w / samples - 1


def _ends(shares: Sequence[float]) -> str:
    low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in (min(shares), max(shares)))
    return f"{low} to {high}"


def _waiting_w(groups: Sequence[Kind]) -> float:
    """What a wait adds to the energy of a pass, over its time."""
    at_once, later = (
        (kind[0].period_ms + kind[0].wait_ms / 2, fmean(start.counter_w for start in kind))
        for kind in groups
    )
    return (later[0] * later[1] - at_once[0] * at_once[1]) / (later[0] - at_once[0])
