"""Writes a projection as text, as tables, and as a page with figures: of the layout with the
fastest median on each number of GPUs, and of one layout with more and more replicas."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from tabulate import tabulate

from workflow_lib import __version__
from workflow_lib.projection.candidates import Candidate, batch, candidates
from workflow_lib.projection.gpu_power import levels
from workflow_lib.projection.kinds import LEVELS
from workflow_lib.projection.layouts import own_layout
from workflow_lib.projection.machines import Machine
from workflow_lib.projection.own_stack import OwnStack
from workflow_lib.projection.project import (
    Facility,
    Prices,
    Projected,
    facility_mwh,
    headings,
    predicted,
    recommended,
    table,
)
from workflow_lib.records.labels import left_out
from workflow_lib.records.model import Model
from workflow_lib.records.whole_files import whole_file
from workflow_lib.report.figures import style
from workflow_lib.report.figures.embedding import drawn_for_page
from workflow_lib.report.figures.html import page_templates
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.table_files import write_table
from workflow_lib.words import counted, power_of_ten

#: the largest number of GPUs, as in figure 22 of arXiv 2509.10371
MOST_GPUS = 8192
#: bytes/s of a node's adapters: one of 100 Gb/s, as in arXiv 2509.10371, and eight of 400 Gb/s
FABRICS: Mapping[str, float] = {"100 Gb/s a node": 100e9 / 8, "8×400 Gb/s a node": 8 * 400e9 / 8}
_COLOURS = (style.BLUE, style.VERMILLION)
_PANELS = (("tokens_per_s_per_gpu", "tokens/s/GPU"), ("energy_per_token_j", "J/token"))
Lines = Mapping[str, Sequence[Projected]]


def fastest_by_gpus(
    model: Model,
    machine: Machine,
    platform: str,
    tokens: float,
    stack: OwnStack,
    wanted: int | None = None,
) -> list[Projected]:
    """The layout that surely fits and has the fastest median, on each number of GPUs from one node
    on, doubling; numbers on which none fits are left out. ``wanted`` is the sequences of a step;
    else they are those of :func:`workflow_lib.projection.candidates.batch`."""
    fastest: list[Projected] = []
    known = levels(stack.runs, machine.gpu)
    gpus = machine.gpus_per_node
    while gpus <= MOST_GPUS:
        tried = list(candidates(model, machine, gpus, batch(model, gpus, wanted)))
        rows = predicted(tried, platform, stack, known, model, tokens)
        rows.sort(key=lambda row: row.step_time_s)
        fastest += itertools.islice((row for row in rows if row.candidate.fits == "yes"), 1)
        gpus *= 2
    return fastest


def replicas(
    base: Projected, platform: str, stack: OwnStack, node_bytes_per_s: float
) -> list[Projected]:
    """A layout with 2, 4 … replicas, each with as many sequences as in ``base``, on a network;
    numbers of replicas that do not surely fit are left out."""
    of = base.candidate
    machine = dataclasses.replace(
        of.layout.machine, network_bytes_per_s=node_bytes_per_s / of.layout.machine.gpus_per_node
    )
    tried, times = [], 2
    while (of.degrees.world_size // of.degrees.dp) * times <= MOST_GPUS:
        degrees = dataclasses.replace(of.degrees, dp=times)
        sequences = of.training.global_batch_size // of.degrees.dp * times
        training = dataclasses.replace(of.training, global_batch_size=sequences)
        layout = own_layout(base.model, degrees, training, machine)
        candidate = Candidate(base.model, degrees, training, layout)
        if candidate.fits == "yes" and times % degrees.ep == 0:
            tried.append(candidate)
        times *= 2
    known = levels(stack.runs, machine.gpu)
    return predicted(tried, platform, stack, known, base.model, base.tokens)


def figures(lines: Sequence[Projected], fabrics: Lines, subject: str) -> list[FigureEntry]:
    """Figures of throughput and energy over GPUs, with bands: of the layouts with
    the fastest medians, and of two fabrics."""
    bands = "Lines are medians, bands 50 % and 90 % intervals. "
    entries = []
    if len(lines) > 1:
        batches = sorted({line.candidate.training.global_batch_size for line in lines})
        of_step = " to ".join(f"{size:,}" for size in (*batches[:1], *batches[1:][-1:]))
        entries.append(
            FigureEntry(
                stem="fastest-medians",
                title=f"{subject}: the layout with the fastest median on each number of GPUs",
                caption=f"A step has {of_step} sequences. {bands}"
                "Other layouts may be as fast. Energy is the GPUs'.",
                draw=partial(_draw, {"fastest median": lines}, f"{subject}: fastest medians"),
            )
        )
    if all(len(fabric) > 1 for fabric in fabrics.values()):
        base = next(iter(fabrics.values()))[-1]
        entries.append(
            FigureEntry(
                stem="two-fabrics",
                title=f"{subject}: replicas of one layout on two fabrics",
                caption=f"Up to {base.label}, with the same work per GPU. {bands}"
                "No fabric was measured: bands include the differences between fabrics of one "
                "rate.",
                draw=partial(_draw, fabrics, f"{subject}: two fabrics"),
            )
        )
    return entries


def _draw(lines: Lines, title: str) -> Figure:
    figure = Figure(figsize=(style.COLUMN_IN, 2.6))
    panels = figure.subplots(1, 2)
    for (measure, heading), axes in zip(_PANELS, panels, strict=True):
        for (name, points), colour in zip(lines.items(), _COLOURS, strict=False):
            gpus = [point.candidate.layout.gpus for point in points]
            for level in (0.9, 0.5):
                low, high = zip(*(point.interval(measure, level) for point in points), strict=True)
                axes.fill_between(gpus, low, high, color=colour, alpha=0.18, linewidth=0)
            medians = [point.values()[measure][0] for point in points]
            axes.plot(gpus, medians, color=colour, marker="o", markersize=2.5, label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(_ticks(lines), labels=[f"{tick:g}" for tick in _ticks(lines)])
        axes.set_xlabel("GPUs")
        axes.set_title(heading)
        axes.set_ylim(bottom=0)
    if len(lines) > 1:
        panels[0].legend(loc="lower left")
    style.title(figure, title)
    return figure


def _ticks(lines: Lines) -> list[int]:
    gpus = sorted({point.candidate.layout.gpus for points in lines.values() for point in points})
    return gpus[:: -(-len(gpus) // 4)]


_TEMPLATES = page_templates("workflow_lib.projection", "workflow_lib.report")
#: the most layouts on the page; the Parquet file has all
MOST_SHOWN = 10


def ranked(rows: Sequence[Projected], alike: Sequence[Projected]) -> list[dict[str, str]]:
    """A line for each layout, with the 90 % interval after each value. ``alike`` are those that are
    not told apart from the first."""
    names = {row.label for row in alike}
    return [
        {
            "layout": row.label,
            "told from the first": "–"
            if row is rows[0] or row.candidate.fits != rows[0].candidate.fits
            else "no"
            if row.label in names
            else "yes",
            "GB allocated": f"{row.candidate.memory.allocated / 1e9:.0f}",
            "GB used": _used(row),
            "fits": str(row.candidate.fits),
            **{heading: _shown(row, name) for name, heading in headings(row.tokens)},
        }
        for row in rows[:MOST_SHOWN]
    ]


def _used(row: Projected) -> str:
    """What the driver will count; if the GPU's size bounds it, that is said."""
    needed, most = row.candidate.memory.with_room, row.candidate.layout.machine.memory_bytes
    return f"{needed / 1e9:.0f}" if needed <= most else f"all {most / 1e9:.0f}"


def of_first(first: Projected) -> list[dict[str, str]]:
    """A line for each measure of a layout, with the interval of each level."""
    return [
        {
            f"of {first.label}": heading,
            "median": _word(measure, first.values()[measure][0]),
            **{f"{level * 100:.0f} % interval": _range(first, measure, level) for level in LEVELS},
        }
        for measure, heading in headings(first.tokens)
    ]


def _shown(row: Projected, measure: str) -> str:
    return f"{_word(measure, row.values()[measure][0])} ({_range(row, measure, 0.9)})"


def _range(row: Projected, measure: str, level: float) -> str:
    return " to ".join(_word(measure, end) for end in row.interval(measure, level))


def _word(measure: str, value: float) -> str:
    return f"{value:.1%}" if measure == "mfu_causal" else _number(value)


def _number(value: float) -> str:
    """A number with three significant digits and commas at thousands."""
    digits = max(0, 2 - math.floor(math.log10(value))) if value > 0 else 0
    rounded = round(value, 2 - math.floor(math.log10(value))) if value > 0 else value
    return f"{rounded:,.{digits}f}"


def describe(
    rows: Sequence[Projected],
    alike: Sequence[Projected],
    basis: Sequence[tuple[str, str]],
    besides: str,
) -> str:
    """The projection as text: the first layouts, which of them are told apart, and how each part is
    known."""
    first = recommended(rows)
    names = left_out([row.candidate.row for row in rows])
    lines = [
        verdict(rows, alike),
        tabulate(ranked(rows, alike)[:5], headers="keys", disable_numparse=True),
        f"{_fitting(rows)} {names} Medians, and intervals that should hold 90 % of runs; "
        "energy and power are the GPUs'.",
        *([tabulate(of_first(first), headers="keys", disable_numparse=True)] if first else []),
        tabulate(
            *(basis, ("what", "how it is known")), disable_numparse=True, maxcolwidths=[None, 100]
        ),
    ]
    return "\n\n".join([*lines, *([besides] if besides else [])])


def verdict(rows: Sequence[Projected], alike: Sequence[Projected]) -> str:
    """Whether there is a best layout of those that fit, and which median is the shortest."""
    first = rows[0]
    name, time = first.label, _word("step_time_s", first.step_time_s)
    if first.candidate.fits != "yes":
        return "No layout surely fits, so none is named the fastest."
    if len(alike) == 1:
        return f"The fastest layout that fits is {name}: 90 % intervals of ratios tell it from all."
    fitting = sum(row.candidate.fits == "yes" for row in rows)
    return (
        f"{len(alike)} of the {fitting} layouts that fit are not told apart by 90 % intervals of "
        f"ratios of their step times; the fastest median, of {name}, is {time} s/step."
    )


def _fitting(rows: Sequence[Projected]) -> str:
    """How many layouts there are, and how many of them fit into memory."""
    counts = Counter(row.candidate.fits for row in rows)
    of = rows[0]
    return (
        f"A step has {of.candidate.training.global_batch_size:,} sequences of "
        f"{of.model.sequence_length:,} tokens. Of {counted(len(rows), 'layout')} {counts['yes']} "
        f"fit into memory, {counts['perhaps']} perhaps do, and {counts['no']} do not."
        + ("" if counts["yes"] else " None is recommended.")
    )


def meter(best: Projected, facility: Facility) -> str:
    """A sentence on the energy at the facility's meter; "" if no power of the rest of a node was
    given."""
    values = best.values()
    layout = best.candidate.layout
    mwh = facility_mwh(
        values["energy_mwh"][0], values["gpu_hours"][0], layout.machine.gpus_per_node, facility
    )
    if mwh is None:
        return ""
    return (
        f"With {facility.node_rest_w:g} W per node besides its GPUs"
        + (f" and a PUE of {facility.pue:g}" if facility.pue else "")
        + f", as given for nodes {_cooled(facility.cooling)}, the layout with "
        f"the fastest median takes {mwh:.4g} MWh at the meter for {power_of_ten(best.tokens)} "
        "tokens."
    )


def price(best: Projected, facility: Facility, prices: Prices) -> str:
    """A sentence on what tokens cost; "" if no price was given. Energy is that at the meter if the
    rest of a node is known, else that of GPUs."""
    if prices.per_gpu_hour is None and prices.per_kwh is None:
        return ""
    (hours, hours_sd), (mwh, mwh_sd) = (best.values()[name] for name in ("gpu_hours", "energy_mwh"))
    gpus_per_node = best.candidate.layout.machine.gpus_per_node
    at_meter = facility_mwh(mwh, hours, gpus_per_node, facility)
    whose = "of GPUs" if at_meter is None else "at the meter"
    of_hours = hours * (prices.per_gpu_hour or 0)
    of_energy = 1e3 * (mwh if at_meter is None else at_meter) * (prices.per_kwh or 0)
    whole = of_hours + of_energy
    # Longer steps cost more of both, so their errors add up.
    sd = (of_hours * hours_sd + of_energy * mwh_sd) / whole
    million = whole / best.tokens * 1e6
    low, high = best.widths.interval(million, sd, 0.9)
    asked = [
        f"{amount:g} {prices.currency} a {what}"
        for amount, what in (
            (prices.per_gpu_hour, "GPU-hour"),
            (prices.per_kwh, f"kWh {whose}"),
        )
        if amount is not None
    ]
    return (
        f"At {' and '.join(asked)} the layout with the fastest median costs {_number(million)} "
        f"{prices.currency} a million tokens ({_number(low)} to {_number(high)} with 90 %), "
        f"{_number(whole)} {prices.currency} for {power_of_ten(best.tokens)} tokens."
    )


def _cooled(cooling: str | None) -> str:
    return f"cooled by {cooling}" if cooling else "whose cooling was not named"


def write_projection(
    rows: Sequence[Projected],
    alike: Sequence[Projected],
    basis: Sequence[tuple[str, str]],
    entries: Sequence[FigureEntry],
    title: str,
    besides: str,
    output: Path,
) -> Path:
    """Write ``projection.parquet``, ``figures/`` and ``projection.html``; returns the page."""
    output.mkdir(parents=True, exist_ok=True)
    write_table(table(rows, alike), output / "projection.parquet")
    text = _TEMPLATES.get_template("projection.html.j2").render(
        version=__version__,
        title=title,
        ranked=ranked(rows, alike),
        fitting=_fitting(rows),
        verdict=verdict(rows, alike),
        left_out=left_out([row.candidate.row for row in rows]),
        first=of_first(first) if (first := recommended(rows)) else [],
        basis=basis,
        besides=besides,
        figures=drawn_for_page(entries, output / "figures"),
    )
    page = output / "projection.html"
    with whole_file(page) as draft:
        draft.write_text(text, encoding="utf-8")
    return page
