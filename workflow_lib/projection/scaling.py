"""Figures of the layout with the fastest median on each number of GPUs, and of one layout with more
and more replicas."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from functools import partial

from matplotlib.figure import Figure

from workflow_lib.projection.candidates import Candidate, batch, candidates
from workflow_lib.projection.gpu_power import levels
from workflow_lib.projection.layouts import own_layout
from workflow_lib.projection.machines import Machine
from workflow_lib.projection.own_stack import OwnStack
from workflow_lib.projection.project import Projected, predicted
from workflow_lib.records.model import Model
from workflow_lib.report.figures import style
from workflow_lib.report.figures.kind import FigureEntry

#: the largest number of GPUs, as in figure 22 of arXiv 2509.10371
MOST_GPUS = 8192
#: bytes/s of a node's adapters: one of 100 Gb/s, as in arXiv 2509.10371, and eight of 400 Gb/s
FABRICS: Mapping[str, float] = {"100 Gb/s a node": 100e9 / 8, "8×400 Gb/s a node": 8 * 400e9 / 8}
_COLOURS = (style.BLUE, style.VERMILLION)
_PANELS = (("tokens_per_s_per_gpu", "tokens/s/GPU"), ("energy_per_token_j", "J/token"))
Lines = Mapping[str, Sequence[Projected]]


def fastest_by_gpus(
    model: Model, machine: Machine, platform: str, tokens: float, stack: OwnStack
) -> list[Projected]:
    """The layout that surely fits and has the fastest median, on each number of GPUs from one node
    on, doubling; numbers on which none fits are left out."""
    found: list[Projected] = []
    known = levels(stack.runs, machine.gpu)
    gpus = machine.gpus_per_node
    while gpus <= MOST_GPUS:
        tried = list(candidates(model, machine, gpus, batch(model, gpus)))
        rows = predicted(tried, platform, stack, known, model, tokens)
        rows.sort(key=lambda each: each.step_time_s)
        found += itertools.islice((row for row in rows if row.candidate.fits == "yes"), 1)
        gpus *= 2
    return found


def replicas(
    base: Projected, platform: str, stack: OwnStack, node_bytes_per_s: float
) -> list[Projected]:
    """A layout with 2, 4 … replicas, each with as many sequences as in ``base``, on a network;
    numbers of replicas that do not surely fit are left out."""
    of = base.candidate
    machine = dataclasses.replace(
        of.layout.machine, network_bytes_per_s=node_bytes_per_s / of.layout.machine.gpus_per_node
    )
    found, times = [], 2
    while (of.degrees.world_size // of.degrees.dp) * times <= MOST_GPUS:
        degrees = dataclasses.replace(of.degrees, dp=times)
        sequences = of.training.global_batch_size // of.degrees.dp * times
        training = dataclasses.replace(of.training, global_batch_size=sequences)
        layout = own_layout(base.model, degrees, training, machine)
        each = Candidate(base.model, degrees, training, layout)
        if each.fits == "yes" and times % degrees.ep == 0:
            found.append(each)
        times *= 2
    known = levels(stack.runs, machine.gpu)
    return predicted(found, platform, stack, known, base.model, base.tokens)


def figures(lines: Sequence[Projected], fabrics: Lines, subject: str) -> list[FigureEntry]:
    """Figures of throughput and energy over GPUs, with bands: of the layouts with
    the fastest medians, and of two fabrics."""
    bands = "Lines are medians, bands 50 % and 90 % intervals. "
    entries = []
    if len(lines) > 1:
        entries.append(
            FigureEntry(
                stem="fastest-medians",
                title=f"{subject}: the layout with the fastest median on each number of GPUs",
                caption=bands + "Other layouts may be as fast. Energy is the GPUs'.",
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
