"""Energy against throughput by model, with the cells that no other cell beats in both."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib.records import cell_axes
from workflow_lib.records.labels import labels
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, fate, natural
from workflow_lib.report.figures.kind import MEDIANS, Division, FigureKind, by_model
from workflow_lib.report.figures.marks import tell
from workflow_lib.report.figures.numbers import interval_in_words, significant
from workflow_lib.report.figures.tables import Tables
from workflow_lib.words import counted

#: the axes in which the cells of a figure may differ: how, and where, the same work is done
_FREE = cell_axes.of_roles("layout", "option", "place")
#: a colour and marker for each platform
_LOOKS = (
    (style.BLUE, "o"),
    (style.ORANGE, "s"),
    ("#404040", "^"),
    (style.PURPLE, "D"),
    (style.GREEN, "v"),
)
#: the most cells that are named below the figure. If there are more, only those of the front are
#: named; the page's table has the others
_MOST_NAMES = 12
#: approximate size of the axes in points, and where a number may be placed beside a point
_AXES_PT = (190.0, 140.0)
_BESIDE = ((3.0, -7.0), (-7.0, 3.0), (3.0, 3.0), (-7.0, -7.0))
#: letters of a line below the figure
_LETTERS = 58


@dataclass(frozen=True)
class Point:
    """A cell's point: median, lower and upper end of both measures."""

    cell: Row
    #: over all GPUs
    tokens_per_s: tuple[float, float, float]
    #: over all GPUs
    j_per_token: tuple[float, float, float]


def _divide(tables: Tables) -> Iterator[Division[Sequence[Row]]]:
    """The cells that do the same work, in one figure, if at least two have both measures."""
    for model, cells in by_model(tables.cells):
        works = cell_axes.alike(cells, _FREE)
        groups = sorted(works, key=lambda group: natural(group[0]["workload"]))
        unlike = cell_axes.differences([group[0] for group in groups], _FREE)
        for alike, words in zip(groups, unlike, strict=True):
            what = "decoded " if alike[0]["workload"] == "inference" else ""
            yield Division(
                ", ".join([model, *words]),
                (model, *words),
                [alike] if len(points(alike)) > 1 else [],
                f"Energy of all GPUs per {what}token against {what}tokens per second of all GPUs, "
                f"one marker for each cell. Bars are {interval_in_words(alike)}. Cells further "
                "down and to the right are better. The line joins the cells that no other cell "
                "beats in both measures (the Pareto front of the medians). Cells are numbered "
                f"and named; with more than {_MOST_NAMES} cells only those of the line are.",
                lambda heading, whole: energy_figure(heading, whole[0]),
            )


def points(cells: Sequence[Row]) -> list[Point]:
    """The points of the cells that completed and have both measures."""
    drawn = []
    for cell in cells:
        inference = cell["workload"] == "inference"
        speed = "decode_tokens_per_s_per_gpu" if inference else "tokens_per_s"
        yielded = "decode_tokens_per_j" if inference else "tokens_per_j"
        if not completed(cell) or cell[speed] is None or not cell[yielded]:
            continue
        factor = cell["gpus"] if inference else 1
        middle, low, high = (cell[yielded + end] for end in ("", "_low", "_high"))
        if low <= 0:
            continue
        drawn.append(
            Point(
                cell,
                (
                    cell[speed] * factor,
                    cell[f"{speed}_low"] * factor,
                    cell[f"{speed}_high"] * factor,
                ),
                # The lower end of tokens per joule is the upper end of joules per token.
                (1 / middle, 1 / high, 1 / low),
            )
        )
    return drawn


def front(some: Sequence[Point]) -> list[Point]:
    """The points to which no other has both a higher throughput and a lower energy, slowest first.

    If two are equal in one measure, the better in the other is in the front; if they are equal in
    both, both are.
    """
    chosen: list[Point] = []
    for point in sorted(some, key=lambda point: (-point.tokens_per_s[0], point.j_per_token[0])):
        best = chosen[-1] if chosen else None
        if (
            best is None
            or point.j_per_token[0] < best.j_per_token[0]
            or (point.tokens_per_s[0], point.j_per_token[0])
            == (best.tokens_per_s[0], best.j_per_token[0])
        ):
            chosen.append(point)
    return chosen[::-1]


def energy_figure(heading: str, cells: Sequence[Row]) -> Figure:
    """Draw cells that do the same work, within :func:`style.styled`."""
    some = points(cells)
    best = front(some)
    named = best if len(some) > _MOST_NAMES else [*best, *(p for p in some if p not in best)]
    names = {cell["cell"]: label for cell, label in zip(cells, labels(cells), strict=True)}
    platforms = sorted({cell["platform"] for cell in cells}, key=natural)
    looks = {name: _LOOKS[number % len(_LOOKS)] for number, name in enumerate(platforms)}
    lines = [
        f"{number}  {names[point.cell['cell']]} ({point.cell['platform']})"
        for number, point in enumerate(named, start=1)
    ]
    if len(lines) > _MOST_NAMES:
        lines[_MOST_NAMES:] = [f"… and {len(lines) - _MOST_NAMES} more"]
    without = _without(cells, some)
    below = [
        part
        for line in (*lines, *([without] if without else []))
        for part in textwrap.wrap(line, _LETTERS, subsequent_indent="    ", break_on_hyphens=False)
    ]
    figure = Figure(figsize=(style.COLUMN_IN, 2.75 + style.LINE_IN * len(below)))
    axes = figure.subplots()
    front_x = [point.tokens_per_s[0] for point in best]
    front_y = [point.j_per_token[0] for point in best]
    axes.plot(front_x, front_y, color="black", linewidth=0.8, linestyle=(0, (4, 2)), zorder=1)
    for name in platforms:
        of_platform = [point for point in some if point.cell["platform"] == name]
        colour, marker = looks[name]
        if of_platform:
            axes.errorbar(
                [point.tokens_per_s[0] for point in of_platform],
                [point.j_per_token[0] for point in of_platform],
                xerr=_lengths([point.tokens_per_s for point in of_platform]),
                yerr=_lengths([point.j_per_token for point in of_platform]),
                fmt=marker,
                color=colour,
                markersize=3.6,
                markeredgecolor="white",
                markeredgewidth=0.4,
                elinewidth=0.6,
                label=f"{name} ({_gpus(of_platform)})",
            )
        for point in of_platform:
            speed, energy = _with_interval(point.tokens_per_s), _with_interval(point.j_per_token)
            text = f"{names[point.cell['cell']]} ({name}): {speed[0]} tokens/s{speed[1]}, "
            text += f"{energy[0]} J per token{energy[1]}"
            tell(axes, text, point.tokens_per_s[0], point.j_per_token[0])
    axes.margins(0.08)
    _number(axes, named)
    axes.grid(linewidth=0.4, color="#dddddd")
    axes.set_xlabel("Throughput of all GPUs (tokens/s)")
    axes.set_ylabel("Energy of all GPUs (J per token)")
    axes.legend(loc="best")
    if below:
        figure.supxlabel("\n".join(below), fontsize=6.5, x=0.02, ha="left", linespacing=1.15)
    style.title(figure, heading, style.marks(cells))
    return figure


def _number(axes: Axes, named: Sequence[Point]) -> None:
    """Write a number beside each point, where it hides no earlier number."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    taken: list[tuple[float, float]] = []
    for number, point in enumerate(named, start=1):
        place = point.tokens_per_s[0], point.j_per_token[0]
        x_pt = (place[0] - left) / (right - left) * _AXES_PT[0]
        y_pt = (place[1] - bottom) / (top - bottom) * _AXES_PT[1]
        offsets = [*_BESIDE, *((3.0, -7.0 - 8.0 * further) for further in range(1, len(named) + 1))]
        offset = next(
            (x, y)
            for x, y in offsets
            if all(abs(x_pt + x - a) > 9 or abs(y_pt + y - b) > 9 for a, b in taken)
        )
        taken.append((x_pt + offset[0], y_pt + offset[1]))
        axes.annotate(str(number), place, xytext=offset, textcoords="offset points", fontsize=6.5)


def _lengths(ends: Sequence[tuple[float, float, float]]) -> tuple[list[float], list[float]]:
    return [mid - low for mid, low, _ in ends], [high - mid for mid, _, high in ends]


def _with_interval(ends: tuple[float, float, float]) -> tuple[str, str]:
    """A median, and its interval in brackets, "" if there is none."""
    middle, low, high = map(significant, ends)
    return middle, "" if low == middle == high else f" ({low}–{high})"


def _gpus(some: Sequence[Point]) -> str:
    counts = sorted({point.cell["gpus"] for point in some})
    last = counted(counts[-1], "GPU")
    return last if len(counts) == 1 else f"{counts[0]} to {last}"


def _without(cells: Sequence[Row], some: Sequence[Point]) -> str:
    """Which cells are not drawn: "Not drawn: 3 out of memory, 1 infeasible"."""
    drawn = {point.cell["cell"] for point in some}
    missing = Counter(
        "without data" if completed(cell) else fate(cell)
        for cell in cells
        if cell["cell"] not in drawn
    )
    reasons = ", ".join(f"{number} {why}" for why, number in sorted(missing.items()))
    return f"Not drawn: {counted(sum(missing.values()), 'cell')}, {reasons}" if missing else ""


KIND = FigureKind(
    stem="energy",
    subject="Energy against throughput",
    about=(
        "Energy per token (J) of all GPUs against tokens/s, one marker for each cell. Cells "
        "further down and to the right are better."
    ),
    limits=MEDIANS + "The energy includes only the GPUs.",
    most=1,
    divide=_divide,
    why_not=lambda _: "no two completed cells of one work have both throughput and energy",
)
