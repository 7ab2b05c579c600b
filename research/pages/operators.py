"""The page of what ``research/operators_on_gpus.py`` saw, beside the steps of profiled cells: what
the power cap costs each operator, and whether their joules alone are those of a step."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl

from research.grouping import grouped
from research.pages import findings, parts
from research.pages.parts import percent
from research.pages.tables import NOTICE, document, table
from workflow_lib.comparison.sides import read_side
from workflow_lib.records.tables import KERNELS, TRACES
from workflow_lib.records.training import NATIVE
from workflow_lib.report.figures import kernel_times
from workflow_lib.report.figures.cell_names import Row, completed_runs

RECORDS = Path(__file__).parents[2] / "evidence" / "operators" / "h200-2026-11-30.jsonl"
#: of two ranks, and of one token, on two other GPUs
EXCHANGES = RECORDS.with_stem(f"{RECORDS.stem}-exchanges")
NAME = f"operators-{RECORDS.stem}.md"
#: sweeps on H200 with profiled cells of dense models, whose layers are compiled
SWEEPS = (findings.TRAINERS, findings.TRAINERS_LAYOUTS, "evidence-one-gpu-h200x1")
NOTHING, HEAD = "nothing", "8192×128256×4096"
WAITS = "receive that waits"
#: products of a layer, forward; each has two gradients of as many operations
LAYER = ("8192×6144×4096", "8192×4096×4096", "8192×28672×4096", "8192×4096×14336")
#: a class of kernels, and the operators that stand for it
CLASSES = {
    "gemm": ("product, bf16", "product, fp8"),
    "attention": ("attention, forward", "attention, backward"),
    "normalisation_elementwise": ("element-wise, bf16", "sum of gradients"),
    "optimiser": ("AdamW",),
    "other_computation": ("element-wise, bf16",),
    "memory": ("copy",),
}
#: power above that of a GPU with nothing to do, by the clock: between these exponents
EXPONENTS = 2.0, 3.0
MORE = 1.1


@dataclass(frozen=True)
class Operator:
    """The mean of its two turns; ``power_w`` is the energy counter's."""

    name: str
    shape: str
    #: the shortest of a burst from rest: the clock is the highest, and the cap does not act yet
    burst_s: float
    call_s: float
    power_w: float
    clock_mhz: float
    #: how far the turns are apart in power, as a share
    apart: float

    @classmethod
    def of(cls, turns: Sequence[dict[str, Any]]) -> Operator:
        """From the records of its turns."""
        powers = [turn["power_w"] for turn in turns]
        return cls(
            turns[0]["name"],
            turns[0]["shape"],
            fmean(min(turn["burst_call_s"]) for turn in turns),
            fmean(turn["call_s"] for turn in turns),
            fmean(powers),
            fmean(turn["sm_clock_mhz"] for turn in turns),
            max(powers) / min(powers) - 1,
        )


def operators(records: Iterable[dict[str, Any]]) -> list[Operator]:
    """Each with its turns, in the order of the first."""
    turns = grouped(records, lambda record: (record["name"], record["shape"]))
    return [Operator.of(each) for each in turns.values()]


def page(rebuilt: Path) -> str:
    """The page."""
    records, exchanged = (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        for path in (RECORDS, EXCHANGES)
    )
    known, exchanges, first = operators(records), operators(exchanged), records[0]
    rows = list(_steps(rebuilt, known))
    off = {
        bubbles: max(
            abs(capped_j(step, known, exchanges) / step.energy_j - 1)
            for step in rows
            if (step.bubble_s > 0) == bubbles
        )
        for bubbles in (False, True)
    }
    legends = {each.name: each.legend for each in kernel_times.CLASSES}
    return document(
        NOTICE,
        "# What does the power cap cost, and where do the joules of a step go?",
        f"One {first['gpu']}, driver {first['driver']}, torch {first['torch']}, limit "
        f"{first['power_limit_w']:.0f} W, 30 November 2026: each operator of Llama 3 8B alone, on "
        "random normal numbers, in a burst from rest (the fastest of its pieces of 5 ms or a call) "
        "and for 2 s, there and back; a row is the mean of both. Power is by the energy counter. "
        f"The cells of `{findings.TRAINERS}` were profiled on the same GPU and another, minutes "
        "before, and those of other sweeps on other GPUs. [The records](../../"
        f"evidence/operators/{RECORDS.name}) are of `research/operators_on_gpus.py`.",
        table(
            (
                *("operator", "shape", "burst, µs", "for seconds, µs", "the cap costs"),
                *("W (turns apart)", "SM clock, MHz", "mJ a call"),
            ),
            map(_row, known),
        ),
        "## What the cap costs a step",
        "Products and attention of a step of the whole Llama 3 8B on two H200, as its profile has "
        "them, beside the same operators alone: each layer's four products, two gradients of each, "
        "and the head in bf16. In a step products are faster than alone for seconds: the driver "
        "holds the mean power at the cap, and what element-wise kernels leave of it goes to the "
        "products. Attention runs at their clock, and is slower than alone. With ZeRO-3 in bf16 "
        "exchanges beside them make both slower than alone. What is lost, to the cap and to "
        "exchanges, is the difference to bursts. Other trainers launch seven products a layer.",
        table(
            (
                *("cell", "products: in a step, ms", "in bursts", "for seconds"),
                *("attention: in a step, ms", "in bursts", "for seconds"),
                *("lost, of the step", "a cap 10 % higher returns, of the step"),
            ),
            _lost(rows, known, first["sm_clock_max_mhz"]),
        ),
        "The last column is an estimate, as no limit was changed. It takes it that power above "
        "that of a GPU with nothing to do grows as the clock to the power of 2 to 3, and that "
        "times fall as the clock rises, or as they did from cap to burst.",
        "## What exchanging and waiting take",
        "Two other H200 of one host, joined by NVLink, the same driver and torch: both at once, at "
        "the sizes of a layer's weights and gradients with ZeRO-3 and of hidden states between "
        "halves of a layer or stages of a pipeline; and one that waits for the other, which comes "
        "5 ms late. A rank that waits spins, and takes hardly more than one with nothing to do. "
        "The last two rows are of one of the two GPUs alone. "
        f"[The records](../../evidence/operators/{EXCHANGES.name}).",
        table(
            ("operator", "sizes", "µs", "W (turns and GPUs apart)", "mJ a call of a GPU"),
            (
                (row[0], row[1], row[3], row[5], row[7])
                for row in map(_row, exchanges)
                if not row[0].endswith("late")
            ),
        ),
        "## Joules of operators alone, and of steps",
        "Two sums beside the counter's joules of a GPU and step. *Alone*: each class of kernels "
        "takes the power of its operators alone, for as long as its kernels cover in the profiled "
        "step; exposed communication and idle time take that of a GPU with nothing to do. *At the "
        "cap*: all of the measured step takes the power of products alone, which is the cap's, but "
        "a pipeline's bubbles take that of a rank that waits.",
        f"The second is within {_share(off[False])} of the counter, and within {_share(off[True])} "
        "in pipelines. The cap holds the mean, so what kernels of communication, the optimiser and "
        "short pauses leave of it, products use. So joules follow seconds, of whatever kernels, "
        "and a figure of joules by class would be that of seconds again. Only pauses of tens of "
        "milliseconds save energy, and less than the sum says: behind a bubble the clock is "
        "higher.",
        table(
            (
                "cell",
                *(legends[kind] for kind in CLASSES),
                *("waits", "alone, J", "at the cap, J", "by the counter, J"),
                *("alone, off", "at the cap, off"),
            ),
            (_energies(step, known, exchanges) for step in rows),
        ),
    )


def _share(share: float) -> str:
    return f"{100 * share:.1f} %"


def _row(each: Operator) -> tuple[str, ...]:
    return (
        *(each.name, each.shape or "–", f"{1e6 * each.burst_s:,.1f}", f"{1e6 * each.call_s:,.1f}"),
        _share(each.call_s / each.burst_s - 1),
        f"{each.power_w:.0f} ({100 * each.apart:.1f} %)",
        *(f"{each.clock_mhz:,.0f}", f"{1e3 * each.power_w * each.call_s:,.1f}"),
    )


def _power_w(known: Iterable[Operator], name: str = NOTHING) -> float:
    return next(each.power_w for each in known if each.name == name)


def raised(
    operator: Operator, known: Sequence[Operator], clock_max_mhz: float
) -> tuple[float, float]:
    """The least and the most of its time that a cap ten percent higher returns, as shares."""
    elastic = math.log(operator.call_s / operator.burst_s) / math.log(
        clock_max_mhz / operator.clock_mhz
    )
    idle_w = _power_w(known)
    above = (MORE * operator.power_w - idle_w) / (operator.power_w - idle_w)
    least, most = (above ** (1 / exponent) for exponent in reversed(EXPONENTS))
    return 1 - least ** -min(elastic, 1), 1 - 1 / most


def alone(known: Iterable[Operator], cell: Row) -> dict[str, list[tuple[float, Operator]]]:
    """The products and the attention of a step of a GPU that has all layers: class of kernels →
    how often each operator is called."""
    of = {(each.name, each.shape): each for each in known}
    eight = "product, fp8" if cell["precision"] == "fp8" else "product, bf16"
    times = cell["global_batch_size"] // cell["micro_batch_size"] // cell["dp"]
    layers = times * cell["layers"]
    products = [(3.0 * layers, of[eight, shape]) for shape in LAYER]
    attention = [(1.0 * layers, each) for each in of.values() if each.name in CLASSES["attention"]]
    return {"gemm": [*products, (3.0 * times, of["product, bf16", HEAD])], "attention": attention}


@dataclass(frozen=True)
class Step:
    """A profiled step of a cell, means over ranks, and what its measured runs say."""

    label: str
    cell: Row
    step_s: float
    #: of a GPU, by the counter
    energy_j: float
    #: class of kernels → the time that it covers, at the power of its operators alone; last the
    #: time in which no kernel computes, at the power of a GPU with nothing to do
    joules: dict[str, float]
    #: class of kernels → durations of all of its kernels
    kernel_s: dict[str, float]
    #: that a stage of a pipeline waits for others
    bubble_s: float


def _steps(rebuilt: Path, known: Sequence[Operator]) -> Iterator[Step]:
    """The profiled cells of the sweeps, in the order of their tables."""
    for sweep in SWEEPS:
        directory = findings.directory_of(rebuilt, sweep)
        side = read_side(directory, sweep)
        names = parts.names_of(side.cells)
        kernels, traces = findings.tables_of(directory, kernels=KERNELS, traces=TRACES)
        for cell in side.cells:
            same = pl.col("cell") == cell["cell"]
            runs = completed_runs(side.runs_of(cell))
            profile = kernels.filter(same, pl.col("class").is_in([*CLASSES]))
            if cell["workload"] == "pretrain" and runs and not profile.is_empty():
                label = f"`{names[cell['cell']]}`, {cell['model'].removeprefix('llama3-')}"
                yield _step(label, cell, runs, profile, traces.filter(same), known)


def _step(
    label: str,
    cell: Row,
    runs: Sequence[Row],
    profile: pl.DataFrame,
    traces: pl.DataFrame,
    known: Sequence[Operator],
) -> Step:
    profiled = traces.height * traces["steps"][0]
    computed_s = (traces["computation_s"].sum() + traces["memory_s"].sum()) / profiled
    # Where kernels of two classes compute at the same time, each gets its part of it.
    once = computed_s / (profile["covered_s"].sum() / profiled)
    joules, kernel_s = dict[str, float](), dict[str, float]()
    for kind, stand in CLASSES.items():
        power_w = fmean(each.power_w for each in known if each.name in stand)
        of_class = profile.filter(pl.col("class") == kind)
        joules[kind] = once * of_class["covered_s"].sum() / profiled * power_w
        kernel_s[kind] = of_class["kernel_s"].sum() / profiled
    joules["waits"] = (traces["span_s"].sum() / profiled - computed_s) * _power_w(known)
    return Step(
        label,
        cell,
        fmean(run["step_time_s"] for run in runs),
        fmean(run["energy_per_step_j"] for run in runs) / cell["gpus"],
        joules,
        kernel_s,
        float(traces["bubble_s"].sum() or 0) / profiled,
    )


def _lost(
    rows: Iterable[Step], known: Sequence[Operator], clock_max_mhz: float
) -> Iterator[tuple[str, ...]]:
    """Rows of the table of what the cap costs steps whose GPUs have all layers."""
    for step in rows:
        cell = step.cell
        if cell["layers"] != 32 or cell["dp"] != cell["gpus"] or cell["trainer"] != NATIVE:
            continue
        lost_s, least_s, most_s, times = 0.0, 0.0, 0.0, list[float]()
        for kind, calls in alone(known, cell).items():
            taken_s = step.kernel_s[kind]
            burst_s = sum(count * each.burst_s for count, each in calls)
            gains = [raised(each, known, clock_max_mhz) for _, each in calls]
            lost_s += taken_s - burst_s
            least_s += min(taken_s - burst_s, taken_s * min(least for least, _ in gains))
            most_s += min(taken_s - burst_s, taken_s * max(most for _, most in gains))
            times += [taken_s, burst_s, sum(count * each.call_s for count, each in calls)]
        returned = f"{100 * least_s / step.step_s:.1f} to {_share(most_s / step.step_s)}"
        told = (f"{1e3 * seconds:,.0f}" for seconds in times)
        yield step.label, *told, _share(lost_s / step.step_s), returned


def capped_j(step: Step, known: Iterable[Operator], exchanges: Iterable[Operator]) -> float:
    """Of a step at the cap: the power of products alone, but in bubbles that of waiting."""
    cap_w = fmean(each.power_w for each in known if each.name in CLASSES["gemm"])
    waiting_w = _power_w(exchanges, WAITS)
    return cap_w * (step.step_s - step.bubble_s) + waiting_w * step.bubble_s


def _energies(
    step: Step, known: Sequence[Operator], exchanges: Sequence[Operator]
) -> tuple[str, ...]:
    sums_j = sum(step.joules.values()), capped_j(step, known, exchanges)
    return (
        step.label,
        *(f"{energy_j:,.0f}" if energy_j >= 0.5 else "–" for energy_j in step.joules.values()),
        *(f"{energy_j:,.0f}" for energy_j in (*sums_j, step.energy_j)),
        *(percent(sum_j / step.energy_j - 1) for sum_j in sums_j),
    )
