"""The README's picture: what whole Llama 3 8B on two H200 says of performance and energy, of power
and of heat. Its panels are beside each other, and for a phone below each other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from matplotlib.figure import Figure

from research.pages import findings, tables, triptych_panels
from workflow_lib.comparison.sides import Side, read_side
from workflow_lib.records.tables import GPUS
from workflow_lib.report.figures import style
from workflow_lib.report.figures.cell_names import Row, completed, completed_runs
from workflow_lib.report.figures.numbers import interval_in_words
from workflow_lib.words import counted

NAME, NARROW = "triptych.svg", "triptych-narrow.svg"
#: the first has the runs of the panel of power; a cell of several counts as that of the first
SWEEPS = (
    findings.LAYOUTS,
    findings.OVERLAP,
    findings.TRAINERS,
    findings.TRAINERS_LAYOUTS,
)
#: their pages, and what these are called
_PAGES = {
    findings.NAME: "layouts",
    f"{findings.TRAINERS}.md": "trainers, and fp8",
    f"{findings.TRAINERS_LAYOUTS}.md": "trainers in other layouts",
}
_ALT = "Three panels: performance and energy, power, thermal"
#: the widest window in pixels that shows the panels below each other
_NARROW_PX = 700
_MARGINS_IN = (0.5, 0.1, 0.2, 0.36)


@dataclass(frozen=True)
class Sweep:
    """A sweep's directory and tables."""

    directory: Path
    side: Side

    @cached_property
    def gpus(self) -> list[Row]:
        """Rows of GPUS, of completed runs."""
        (rows,) = findings.tables_of(self.directory, gpus=GPUS)
        done = {(run["cell"], run["run"]) for run in completed_runs(self.side.runs)}
        return [row for row in rows.to_dicts() if (row["cell"], row["run"]) in done]


def read(directories: Iterable[Path]) -> list[Sweep]:
    """The sweeps in these directories."""
    return [Sweep(path, read_side(path, path.name)) for path in directories]


def cells_of(sweeps: Sequence[Sweep]) -> list[Row]:
    """The cells that completed, each once."""
    every = {cell["cell"]: cell for sweep in reversed(sweeps) for cell in sweep.side.cells}
    return [cell for cell in every.values() if completed(cell)]


def runs_of(sweeps: Sequence[Sweep]) -> list[Row]:
    """The runs that completed, each once, in the order in which they began."""
    runs = [run for sweep in sweeps for run in completed_runs(sweep.side.runs)]
    once = {(run["cell"], run["run"], run["started_unix_s"]): run for run in runs}
    return sorted(once.values(), key=lambda run: run["started_unix_s"] or 0.0)


def gpus_of(sweeps: Sequence[Sweep]) -> list[Row]:
    """The rows of GPUS of completed runs, each once."""
    key = ("cell", "run", "gpu_uuid")
    return list({tuple(row[k] for k in key): row for s in sweeps for row in s.gpus}.values())


def files(rebuilt: Path) -> dict[Path, str]:
    """Both arrangements of the picture: each path and its text."""
    sweeps = _of(rebuilt)
    images = findings.DIRECTORY / "images"
    return {images / NAME: svg(sweeps, wide=True), images / NARROW: svg(sweeps, wide=False)}


def _of(rebuilt: Path) -> list[Sweep]:
    return read(findings.directory_of(rebuilt, name) for name in SWEEPS)


def embedded(rebuilt: Path) -> str:
    """The lines of the README that show the picture, with its caption."""
    said, images = caption(_of(rebuilt)), "docs/results/images"
    linked = [f"[{words}](docs/results/{page})" for page, words in _PAGES.items()]
    return (
        f'<a href="docs/results/{findings.NAME}"><picture>\n'
        f'<source media="(max-width: {_NARROW_PX}px)" srcset="{images}/{NARROW}">\n'
        f'<img src="{images}/{NAME}" width="100%" alt="{_ALT}">\n</picture></a>\n\n'
        f"*{said} Their pages: {', '.join(linked)}.*"
    )


def caption(sweeps: Sequence[Sweep]) -> str:
    """In a sentence: the GPUs, how many runs there are, when they were, and what is shown."""
    cells, runs = cells_of(sweeps), runs_of(sweeps)
    begun = [datetime.fromtimestamp(run["started_unix_s"], UTC) for run in runs]
    days = " to ".join(dict.fromkeys(f"{moment:%Y-%m-%d}" for moment in (begun[0], begun[-1])))
    names = " or ".join(sorted({run["gpu_name"] for run in runs}))
    counts = " or ".join(map(str, sorted({cell["gpus"] for cell in cells})))
    sets = {uuids for sweep in sweeps for uuids in sweep.side.gpus.values()}
    return (
        f"The whole Llama 3 8B on {counts} {names}, {counted(len(runs), 'run')} of "
        f"{counted(len(cells), 'cell')} on {counted(len(sets), 'set')} of GPUs, {days}: energy "
        f"against throughput (medians, and {interval_in_words(cells)}), power over one step of a "
        "run of each way to divide it, and mean temperature and clock of each GPU in each run."
    )


def svg(sweeps: Sequence[Sweep], *, wide: bool) -> str:
    """The picture as SVG; the same tables and files give the same bytes."""
    salt = "triptych" if wide else "triptych-narrow"
    with style.styled(salt):
        return tables.svg(figure(sweeps, wide=wide), salt)


def figure(sweeps: Sequence[Sweep], *, wide: bool) -> Figure:
    """Draw the panels, within :func:`style.styled`."""
    drawn = Figure(figsize=(7.2, 2.75) if wide else (style.COLUMN_IN, 7.4))
    # Not by matplotlib's own layout: of nested panels it has not always the same last digits.
    down, across, gaps_in = (1, 3, (0.56, 0.0)) if wide else (3, 1, (0.0, 0.6))
    rows = style.grid(drawn, down, across, _MARGINS_IN, gaps_in)
    first, middle, last = (panel for row in rows for panel in row)
    cells = cells_of(sweeps)
    triptych_panels.performance(first, cells)
    triptych_panels.power(drawn, middle, sweeps[0].directory, sweeps[0].side)
    triptych_panels.thermal(last, cells, gpus_of(sweeps))
    if marked := style.marks(cells):
        drawn.text(0.99, 0.99, marked, ha="right", va="top", color=style.VERMILLION)
    return drawn
