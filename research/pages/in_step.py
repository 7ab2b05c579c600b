"""docs/results/in-step.md: how far energies are off where passes keep in step with the counter."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zipfile import ZipFile

from research.grouping import grouped
from research.pages.tables import NOTICE, document, table
from workflow_lib.measure.summary import summarise
from workflow_lib.power_errors import IN_STEP

NAME = "in-step.md"
_MEASURED = Path(__file__).parents[2] / "evidence" / "measured"
#: passes that nearly fill their period, and short ones with the GPU idle between them
LONG, SHORT = (_MEASURED / f"in-step-{name}h200x1.zip" for name in ("", "short-"))
#: passes of a start, before power is steady
_LEFT_OUT = 10


class Start(NamedTuple):
    """One start of a load: its kind, and powers in W."""

    period_ms: float
    wait_ms: float
    tokens: int
    counter_w: float
    samples_w: float
    #: ``energy_error_share``
    stated: float


Kind = Sequence[Start]


def kinds(path: Path) -> list[Kind]:
    """The starts of each kind."""
    of_kinds = grouped(_starts(path), lambda start: (start.period_ms, start.wait_ms))
    return [of_kinds[kind] for kind in sorted(of_kinds)]


def _starts(path: Path) -> Iterator[Start]:
    """Each start, as ``triptych measure`` would have summarised it alone."""
    with TemporaryDirectory() as scratch, ZipFile(path) as archive:
        archive.extractall(scratch)
        run = Path(scratch, "run")
        steps = run / "steps" / "rank0.csv"
        rows = list(csv.DictReader(steps.open(encoding="utf-8", newline="")))
        known = json.loads((run / "measured.json").read_bytes())
        lines = Path(scratch, "log.txt").read_text("utf-8").splitlines()
        for line in (line for line in lines if line.startswith("SEGMENT ")):
            told = json.loads(line.removeprefix("SEGMENT "))
            first, last = told["first"] + _LEFT_OUT, told["last"]
            with steps.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, rows[0])
                writer.writeheader()
                mine = (row for row in rows if first <= int(row["step"]) <= last)
                writer.writerows({**row, "phase": "measured"} for row in mine)
            yield _start(told, summarise(run, known)["values"])


def _start(told: dict[str, Any], values: dict[str, float]) -> Start:
    joules = values["energy_j"], values["energy_integral_j"]
    counter_w, samples_w = (each / values["measured_duration_s"] for each in joules)
    of_load = round(1e3 * told["period_s"]), 1e3 * told["dither_s"], told["tokens"]
    return Start(*of_load, counter_w, samples_w, values["energy_error_share"])


def page(_rebuilt: Path) -> str:
    """The page; its runs are of no sweep."""
    short, long = kinds(SHORT), kinds(LONG)
    in_step = [kind for kind in short if kind[0].period_ms != 93]
    off = [abs(counter) / start.stated for kind in in_step for start, counter, _ in _off(kind)]
    waiting = [kind for kind in long if kind[0].period_ms == 100]
    return document(
        NOTICE,
        "# What does energy miss in training that keeps in step with the counter?",
        "Forward and backward of four layers of Llama 3 8B's size on two H200, one after the "
        "other, each pass begun by the clock, under `triptych measure`. All starts of a kind do "
        "the same work at the same pace, in another phase to the sensor, so their energies should "
        "be equal. The counter is renewed every 100 ms, the driver's samples every 20 ms.",
        "## Short passes, and a GPU that idles between them",
        "[3,072 tokens](../../evidence/measured/in-step-short-h200x1.zip), 34 ms of work:",
        _table(short),
        "At 60 and 100 ms the counter and the samples are off together, since both look at the "
        "same moments: starts are off their mean by more than the two differ. (Or the GPU itself "
        "is governed in step with the load: a pass's own time was not recorded.) "
        f"`energy_error_share` is three times the difference. Of these {len(off)} starts, "
        f"{_within(off, 1)} are no further off than that, and {_within(off, IN_STEP)} than the "
        "difference alone.",
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
    )


def _within(off: Sequence[float], parts: int) -> int:
    return sum(share <= 1 / parts for share in off)


def _words(start: Start) -> str:
    wait = f" and 0 to {start.wait_ms:.0f} ms" if start.wait_ms else ""
    return f"{start.period_ms:.0f} ms{wait}"


def _table(every: Sequence[Kind]) -> list[str]:
    heads = ("W", "counter, %", "deviation", "samples, %", "counter less samples, %", "stated, ± %")
    return table(("passes", "starts", *heads), map(_kind_row, every))


def _kind_row(kind: Kind) -> Iterator[str]:
    off = list(_off(kind))
    counter, samples = ([each[place] for each in off] for place in (1, 2))
    yield from (_words(kind[0]), str(len(kind)))
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
