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

from research.pages.tables import NOTICE, document, table
from workflow_lib.measure.summary import summarise

NAME = "in-step.md"
ARCHIVE = Path(__file__).parents[2] / "evidence" / "measured" / "in-step-h200x1.zip"
#: of a start, before power is steady
_LEFT_OUT = 10


class Start(NamedTuple):
    """One start of a load: its kind, and powers in W."""

    period_ms: float
    wait_ms: float
    tokens: int
    late: int
    counter_w: float
    samples_w: float
    #: ``energy_error_share``
    stated: float


def starts() -> list[Start]:
    """Each start, as ``triptych measure`` would have summarised it alone."""
    with TemporaryDirectory() as scratch, ZipFile(ARCHIVE) as archive:
        archive.extractall(scratch)
        run = Path(scratch, "run")
        steps = run / "steps" / "rank0.csv"
        rows = list(csv.DictReader(steps.open(encoding="utf-8", newline="")))
        known = json.loads((run / "measured.json").read_bytes())
        found = []
        for line in Path(scratch, "log.txt").read_text("utf-8").splitlines():
            if line.startswith("SEGMENT "):
                start = json.loads(line.removeprefix("SEGMENT "))
                first, last = start["first"] + _LEFT_OUT, start["last"]
                with steps.open("w", encoding="utf-8", newline="") as file:
                    writer = csv.DictWriter(file, rows[0])
                    writer.writeheader()
                    mine = (row for row in rows if first <= int(row["step"]) <= last)
                    writer.writerows({**row, "phase": "measured"} for row in mine)
                found.append(_start(start, summarise(run, known)["values"]))
        return found


def _start(start: dict[str, Any], values: dict[str, float]) -> Start:
    period_ms, wait_ms = 1e3 * start["period_s"], 1e3 * start["dither_s"]
    joules = values["energy_j"], values["energy_integral_j"]
    counter_w, samples_w = (each / values["measured_duration_s"] for each in joules)
    of_load = period_ms, wait_ms, start["tokens"], start["late"]
    return Start(*of_load, counter_w, samples_w, values["energy_error_share"])


def kinds(every: Sequence[Start]) -> list[list[Start]]:
    """The starts of each kind, in the order of their beginning."""
    grouped: dict[tuple[float, float], list[Start]] = {}
    for start in every:
        grouped.setdefault((start.period_ms, start.wait_ms), []).append(start)
    return list(grouped.values())


def page(_rebuilt: Path) -> str:
    """The page; its runs are of no sweep."""
    groups = kinds(starts())
    return document(
        NOTICE,
        "# What does energy miss in training that keeps in step with the counter?",
        "Forward and backward of four layers of Llama 3 8B's size on one H200, each pass begun by "
        "the clock, [under `triptych measure`](../../evidence/measured/in-step-h200x1.zip): "
        "eight starts of ten seconds with passes of 100 ms, the period in which the energy counter "
        "is renewed; eight more with a random wait of 0 to 20 ms after each; four with passes of "
        "93 ms. The GPU was at its power limit all the time. Of a kind, each start should have the "
        "same power; sequences differ by up to 1.4 %, which moves it by up to 1 %.",
        "Energy by the counter less that by the driver's samples tells their errors apart from "
        "such moves:",
        table(
            ("passes", "starts", "W", "counter less samples, %", "its deviation, %"),
            map(_kind_row, groups),
        ),
        _sentence(groups[0]),
        "A random wait lessens that, at a tenth of the throughput here. Its joules cannot be taken "
        f"off again: as if the GPU drew {_waiting_w(groups):.0f} W while it waits, because at the "
        "limit the next pass may draw what a wait spared. Passes of 93 ms need none, and [in real "
        "training](readings.md#energy-both-ways) the two seldom differ.",
        "## Each start",
        "Shares are off the mean of the kind's starts; `energy_error_share` is what the run itself "
        "states.",
        table(
            ("passes", "tokens", "late", "counter, %", "samples, %", "energy_error_share, %"),
            (row for group in groups for row in _start_rows(group)),
        ),
    )


def _words(start: Start) -> str:
    wait = f" and 0 to {start.wait_ms:.0f} ms" if start.wait_ms else ""
    return f"{start.period_ms:.0f} ms{wait}"


def _apart(group: Sequence[Start]) -> list[float]:
    return [start.counter_w / start.samples_w - 1 for start in group]


def _signed(share: float) -> str:
    return f"{100 * share:+.2f}".replace("-", "−")


def _kind_row(group: Sequence[Start]) -> tuple[str, ...]:
    apart = _apart(group)
    mean_w = fmean(start.counter_w for start in group)
    ends = f"{_signed(min(apart))} to {_signed(max(apart))}"
    return _words(group[0]), str(len(group)), f"{mean_w:.0f}", ends, f"{100 * stdev(apart):.2f}"


def _off(group: Sequence[Start]) -> Iterator[tuple[Start, float, float]]:
    counter, samples = (
        fmean(getattr(start, name) for start in group) for name in ("counter_w", "samples_w")
    )
    for start in group:
        yield start, start.counter_w / counter - 1, start.samples_w / samples - 1


def _sentence(group: Sequence[Start]) -> str:
    off = list(_off(group))
    by_counter, by_samples = (stdev(each[place] for each in off) for place in (1, 2))
    return (
        f"In step, it is the counter that is off: over starts it deviates by "
        f"{100 * by_counter:.2f} %, the samples by {100 * by_samples:.2f} %, with what sequences "
        "move. So the two differ by about the counter's error, and that is what a run states."
    )


def _waiting_w(groups: Sequence[Sequence[Start]]) -> float:
    """What a wait adds to the energy of a pass, over its time."""
    means = ((group[0], fmean(start.counter_w for start in group)) for group in groups)
    at_once, later = (
        (start.period_ms + start.wait_ms / 2, mean_w)
        for start, mean_w in means
        if start.period_ms == 100
    )
    return (later[0] * later[1] - at_once[0] * at_once[1]) / (later[0] - at_once[0])


def _start_rows(group: Sequence[Start]) -> Iterator[tuple[str, ...]]:
    for start, counter, samples in _off(group):
        stated = f"{100 * start.stated:.2f}"
        off = _signed(counter), _signed(samples)
        yield _words(start), f"{start.tokens:,}", str(start.late), *off, stated
