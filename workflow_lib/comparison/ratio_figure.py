"""Pairs of cells as dots with whiskers: ratios on a logarithmic axis, differences beside them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

from workflow_lib.comparison.matching import BEST
from workflow_lib.comparison.measures import RATIO, contrast, is_ratio
from workflow_lib.comparison.verdicts import TOLD_APART
from workflow_lib.records.measures import MEASURES
from workflow_lib.report.figures import style
from workflow_lib.report.figures.kind import FigureEntry, parts, slug

#: each figure's file name, subject and measures
_SETS = (
    ("all", "all GPUs together", ("tokens_per_s", "tokens_per_j", "temperature_mean_c")),
    (
        "per-gpu",
        "one GPU",
        ("tokens_per_s_per_gpu", "power_per_gpu_mean_w", "temperature_peak_c"),
    ),
    (
        "inference",
        "prefill and decoding",
        ("prefill_tokens_per_s_per_gpu", "decode_tokens_per_s_per_gpu", "decode_tokens_per_j"),
    ),
)
_CHOSEN = " The best cells are chosen by the same runs, so their values are biased in their favour."
_TITLES = {
    "tokens_per_s": "Throughput",
    "tokens_per_j": "Tokens\nper joule",
    "temperature_mean_c": "Mean temper-\nature (°C)",
    "tokens_per_s_per_gpu": "Throughput\nper GPU",
    "power_per_gpu_mean_w": "Mean power\nper GPU",
    "temperature_peak_c": "Peak temper-\nature (°C)",
    "prefill_tokens_per_s_per_gpu": "Prefill\nper GPU",
    "decode_tokens_per_s_per_gpu": "Decoding\nper GPU",
    "decode_tokens_per_j": "Decoding\nper joule",
}
#: the most pairs in one figure
_ROWS = 24
#: inches to the left, right, above and below the panels; inches between panels; the height of a row
_MARGINS = 1.28, 0.08, style.HEAD_IN + 0.28, 0.34
_GAP_IN, _ROW_IN = 0.1, 0.24
_LETTERS = 25
#: letters of both sides' names that fit below a panel
_NAMES = 9
_COLOURS = {"a_more": style.BLUE, "b_more": style.VERMILLION}
#: where a logarithmic axis may have a tick, besides 1 and its inverse
_TICKS = (1.02, 1.03, 1.05, 1.07, 1.1, 1.15, 1.2, 1.3, 1.5, 1.7, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)


@dataclass
class Line:
    """A pair in a figure: its label, its rows of COMPARISON by measure, or why it has none
    (``fate``)."""

    label: str
    rows: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    fate: str = ""


def entries(
    match: str, model: str, lines: Sequence[Line], names: tuple[str, str]
) -> list[FigureEntry]:
    """The figures of a model's pairs of one kind; none if no pair has an estimate."""
    figures = []
    for stem, subject, measures in _SETS:
        shown = [
            name
            for name in measures
            if any(line.rows.get(name, {}).get("estimate") is not None for line in lines)
        ]
        for part in parts(lines, _ROWS) if shown else ():
            heading = f"{model}{part.counted}"
            figures.append(
                FigureEntry(
                    stem=f"{slug(match, model, stem)}{part.suffix}",
                    title=f"{heading}: {subject}, {names[0]} against {names[1]}",
                    caption=_caption(shown, names, match),
                    draw=partial(ratio_figure, heading, part.items, shown, names),
                )
            )
    return figures


def _caption(measures: Sequence[str], names: tuple[str, str], match: str) -> str:
    kinds = {contrast(MEASURES[name]).kind for name in measures}
    what = [f"ratios of {names[0]} to {names[1]} on logarithmic axes"] * (RATIO in kinds)
    what += [f"differences, {names[0]} minus {names[1]}, in °C"] * ("difference" in kinds)
    axes = " and ".join(what)
    return (
        f"{axes[:1].upper()}{axes[1:]}; right of the line {names[0]} has more. Dots are the "
        "Hodges–Lehmann estimate, thick whiskers the interval that the runs support, thin ones "
        "include dates, nodes and sensor errors. Filled: told apart. Hollow: not told apart. "
        "Squares: too few runs for a verdict. Hatched rows say what is missing."
        + _letters(names)
        + (_CHOSEN if match == BEST else "")
    )


def _letters(names: tuple[str, str]) -> str:
    """A sentence on the letters A and B, if an axis has them because the names do not
    fit; else ""."""
    fit = _short(names) == names
    return "" if fit else f" A is {names[0]}, B is {names[1]}."


def ratio_figure(
    heading: str, lines: Sequence[Line], measures: Sequence[str], names: tuple[str, str]
) -> Figure:
    """Draw pairs within :func:`style.styled`, with a row for each pair and a panel for each
    measure."""
    height = _MARGINS[2] + _MARGINS[3] + _ROW_IN * len(lines)
    figure = Figure(figsize=(style.COLUMN_IN, height))
    panels = style.grid(figure, 1, len(measures), _MARGINS, (_GAP_IN, 0))[0]
    rows = (row for line in lines for row in line.rows.values())
    style.title(figure, heading, style.marks(rows))
    for axes, name in zip(panels, measures, strict=True):
        _panel(axes, name, lines, names)
    panels[0].set_yticks(
        range(len(lines)),
        [style.wrapped(line.label, _LETTERS) for line in lines],
        fontsize=style.SMALLEST_PT,
        linespacing=0.95,
    )
    for number, line in enumerate(lines):
        if line.fate:
            # In the last panel, which is drawn over the others; at the middle of all of them.
            middle = 1 - (len(panels) * (1 + _gap(panels)) - _gap(panels)) / 2
            style.blank_row(panels[-1], number - 0.4, number + 0.4)
            panels[-1].text(
                middle,
                number,
                line.fate,
                transform=panels[-1].get_yaxis_transform(),
                ha="center",
                va="center",
                fontsize=style.SMALLEST_PT,
                bbox={"boxstyle": "square,pad=0.12", "facecolor": "white", "edgecolor": "none"},
            )
    return figure


def _gap(panels: Sequence[Axes]) -> float:
    """The gap between panels as a share of a panel's width."""
    width: float = panels[0].get_position().width
    return _GAP_IN / (width * style.COLUMN_IN)


def _panel(axes: Axes, name: str, lines: Sequence[Line], names: tuple[str, str]) -> None:
    """Draw one measure of all pairs."""
    as_ratio = is_ratio(MEASURES[name])
    neutral = 1.0 if as_ratio else 0.0
    axes.set_title(_TITLES[name], fontsize=7, loc="center")
    axes.axvline(neutral, color=style.GREY, linewidth=0.8, zorder=1)
    reach = 0.0
    dots: dict[int, Mapping[str, Any]] = {}
    for number, line in enumerate(lines):
        row = line.rows.get(name, {})
        if line.fate:
            style.blank_row(axes, number - 0.4, number + 0.4)
        elif row.get("estimate") is None:
            style.blank_row(axes, number - 0.4, number + 0.4, _why(row))
        else:
            ends = [row[end] for end in ("low", "high", "wide_low", "wide_high")]
            known = [end for end in ends if end is not None]
            reach = max(reach, *(abs(math.log(e) if as_ratio else e) for e in known))
            dots[number] = row
    _dots(axes, dots)
    if as_ratio:
        axes.set_xscale("log")
        limit = math.exp(max(1.12 * reach, 0.03))
        axes.set_xlim(1 / limit, limit)
        # Not at the edge, where its label would run into that of the next panel.
        tick = max(tick for tick in _TICKS if tick <= limit**0.8)
        axes.xaxis.set_major_locator(FixedLocator([1 / tick, 1, tick]))
        axes.set_xticklabels([f"{1 / tick:.2g}", "1", f"{tick:g}"])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(" ÷ ".join(_short(names)), fontsize=6.5)
    else:
        axes.set_xlim(-1.12 * max(reach, 1.0), 1.12 * max(reach, 1.0))
        axes.set_xlabel(" − ".join(_short(names)), fontsize=6.5)
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_yticks([])
    axes.grid(axis="x", color="#e3e6ea", linewidth=0.5)


def _dots(axes: Axes, rows: Mapping[int, Mapping[str, Any]]) -> None:
    """Draw estimates with their whiskers; the keys of ``rows`` are line numbers."""
    if not rows:
        return
    colours = {number: _COLOURS.get(row["verdict"], style.GREY) for number, row in rows.items()}
    for ends, width in ((("wide_low", "wide_high"), 0.6), (("low", "high"), 1.8)):
        known = [number for number, row in rows.items() if row[ends[0]] is not None]
        low, high = ([rows[number][end] for number in known] for end in ends)
        of_known = [colours[number] for number in known]
        axes.hlines(known, low, high, colors=of_known, linewidths=width, zorder=2)
    for marker in "os":
        some = [n for n, row in rows.items() if (row["verdict"] == "no_verdict") == (marker == "s")]
        axes.scatter(
            [rows[number]["estimate"] for number in some],
            some,
            s=16,
            marker=marker,
            facecolors=[colours[n] if rows[n]["verdict"] in TOLD_APART else "white" for n in some],
            edgecolors=[colours[n] for n in some],
            linewidths=0.9,
            zorder=3,
        )


def _why(row: Mapping[str, Any]) -> str:
    return "refused" if row.get("verdict") == "refused" else "no value"


def _short(names: tuple[str, str]) -> tuple[str, str]:
    """The sides' names if both fit below a panel, else their letters."""
    return names if sum(map(len, names)) <= _NAMES else ("A", "B")
