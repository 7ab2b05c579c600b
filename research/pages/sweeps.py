"""A page in docs/results for each archived sweep that has none of its own: cells, differences."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import polars as pl

from research.grouping import grouped
from research.pages import findings, parts
from research.pages.tables import document, table
from workflow_lib.comparison.sides import Side, read_side
from workflow_lib.config import SweepSpec
from workflow_lib.records import cell_axes
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.tables import KERNELS, STEP_TIMES, TRACES
from workflow_lib.report.caveats import trained_otherwise, trainers_differ
from workflow_lib.report.figures.cell_names import Row, completed, in_order
from workflow_lib.report.figures.environments import environments
from workflow_lib.report.figures.kernel_times import CLASSES, folded, kernel_times, mean_times
from workflow_lib.report.figures.numbers import NOTHING, significant
from workflow_lib.report.figures.style import EMULATED_MARK
from workflow_lib.report.figures.tables import Tables
from workflow_lib.study import Files, load_study
from workflow_lib.words import counted

#: kinds of figures that a page shows, by the first word of a file's name: what they show
_FIGURES = {
    "parallelism": "Temperature, power, clock, efficiency and throughput",
    "optimisation": "The same cells with and without options",
    "microbatch": "The same cells over micro-batches",
    "memory": "Memory, as planned and as used",
    "kernels": "Kernel time of a step, by class, in one profiled run of each cell",
}
#: parts of the time of kernels that communicate; with less time on each rank they are left out
_PARTS = ("kernel", "waiting", "transfer", "exposed")
_SHORTEST_S = 1e-3
#: smaller numbers of the table of communication are told as that
_LEAST = 0.01
#: so many steps show how a loss falls, whose last ones are summed up
_LEARNING_STEPS, _LAST_STEPS = 200, 50
#: axes that follow from others
_FOLLOW = ("nodes", "lora_rank", "sequence_parallel", "generated_tokens")


def files(rebuilt: Path) -> dict[Path, str]:
    """The pages and their figures: each path and its text."""
    own = [
        directory
        for directory in findings.sweeps_of(rebuilt)
        if directory.name not in (findings.LAYOUTS, findings.OVERLAP)
    ]
    views = grouped(own, lambda directory: _view(directory.name)[0])
    return {
        path: text for directories in views.values() for path, text in of_sweep(directories).items()
    }


def page_of(sweep: str) -> str:
    """The file of a sweep's page; one of several platforms has a view of each on one page."""
    return f"{_view(sweep)[0]}.md"


def of_sweep(views: Sequence[Path]) -> dict[Path, str]:
    """The page of a sweep and its figures, by the directories of its views."""
    name, platform = _view(views[0].name)
    several = len(views) > 1
    title = f"# {_description(name)}" + (f" ({platform})" if platform and not several else "")
    told, found = [findings.NOTICE, title], {}
    for directory in views:
        of_view, images = _of_view(directory)
        if several:
            told.append(f"## On {_view(directory.name)[1]}")
            of_view = [re.sub("^## ", "### ", part) for part in of_view]
        told += of_view
        found |= images
    return {findings.DIRECTORY / page_of(views[0].name): document(*told)} | found


def _of_view(directory: Path) -> tuple[list[str], dict[Path, str]]:
    """What the page tells of a sweep on one platform, and its figures."""
    sweep = directory.name
    side = read_side(directory, sweep)
    cells = in_order(side.cells)
    images = {
        f"{sweep}-{path.stem}.svg": (path, _FIGURES[kind])
        for path in sorted(SweepPaths(directory).figures.glob("*.svg"))
        if (kind := path.stem.split("-")[0]) in _FIGURES
    }
    pairs = _pairs(cells)
    ends = parts.failed_runs(side)
    emulated = f" {EMULATED_MARK}." if cell_axes.emulated_in_words(cells) else ""
    told = [
        _made(side, directory.parents[1]),
        "## Cells",
        parts.table_of(side, cells),
        parts.note(side) if any(map(completed, cells)) else "No run completed.",
        *(f"Trainer {clause}." for clause in trainers_differ(cells, directory.parents[1])),
        *(
            f"**Trained another model than the others**, by the last loss: {sentence}."
            for sentence in trained_otherwise(cells, _quoted(cells), side.runs)
        ),
        *(
            f"![{about}](images/{name})\n\n*{about}.{emulated}*"
            for name, (_, about) in images.items()
        ),
        *kernel_time(directory, cells),
        *communication(directory, cells),
        *losses(directory, cells),
        "## What the differences support",
        parts.words(side, pairs) if pairs else "There is no such pair.",
        "## What is missing",
        "\n".join(ends) or "Nothing: every run completed.",
    ]
    return told, {
        findings.DIRECTORY / "images" / name: path.read_text(encoding="utf-8")
        for name, (path, _) in images.items()
    }


def _quoted(cells: Sequence[Row]) -> list[str]:
    return [f"`{name}`" for name in parts.names_of(cells).values()]


def kernel_time(directory: Path, cells: Sequence[Row]) -> list[str]:
    """The section on kernel time by class; nothing where fewer than two cells were profiled."""
    kernels, traces = findings.tables_of(directory, kernels=KERNELS, traces=TRACES)
    profiled = Tables((), (), (), kernels=kernels, traces=traces)
    of_cells = kernel_times(profiled, [cell["cell"] for cell in cells])
    if len(of_cells) < 2:
        return []
    names = parts.names_of(cells)
    bars = folded([mean_times(list(ranks.values())) for ranks in of_cells.values()])
    shown = [each for each in CLASSES if any(each.name in bar for bar in bars)]
    lines = [
        (
            f"`{names[cell]}`",
            *_of_steps(traces.filter(pl.col("cell") == cell)),
            *(significant(1e3 * bar.get(each.name, 0.0)) for each in shown),
        )
        for cell, bar in zip(of_cells, bars, strict=True)
    ]
    heads = ("the step", "idle", "exposed communication", *(each.legend for each in shown))
    return [
        "## Kernel time of a step",
        "In ms, the mean of the ranks of one profiled run of each cell.",
        "\n".join(table(("cell", *heads), lines)),
    ]


def _of_steps(ranks: pl.DataFrame) -> Iterator[str]:
    """The step's span, idle time and exposed communication: means over ranks, in ms."""
    ranks = ranks.filter(pl.col("steps") > 0)
    for name in ("span_s", "idle_s", "exposed_communication_s"):
        times = (1e3 * ranks[name] / ranks["steps"]).to_list()
        yield NOTHING if None in times else significant(fmean(times))


def communication(directory: Path, cells: Sequence[Row]) -> list[str]:
    """The section on the kernels that communicated in profiled runs; nothing if none did."""
    kernels, traces = findings.tables_of(directory, kernels=KERNELS, traces=TRACES)
    key = ["cell", "run", "rank"]
    steps = traces.filter(pl.col("steps") > 0).select(*key, "steps")
    kernels = kernels.drop_nulls("group").join(steps, on=key)
    lines = []
    for cell, name in parts.names_of(cells).items():
        of_cell = kernels.filter(pl.col("cell") == cell)
        for (kind, group), ranks in of_cell.group_by("class", "group", maintain_order=True):
            if max(ranks["kernel_s"] / ranks["steps"]) < _SHORTEST_S:
                continue
            times = (_span(ranks[f"{part}_s"] / ranks["steps"], 1e3) for part in _PARTS)
            share = _span(ranks["link_share"], 100)
            what = (f"`{name}`", str(kind).replace("_", "-"), str(group))
            lines.append((*what, *times, share))
    if not lines:
        return []
    heads = ("kernels, ms", "waiting, ms", "transfer, ms", "exposed, ms", "of the link's peak, %")
    return [
        "## Communication in a profiled step",
        "Per step of one profiled run of each cell, the lowest to the highest of its ranks. "
        f"Collectives of less than {1e3 * _SHORTEST_S:g} ms are left out.",
        "\n".join(table(("cell", "collective", "group", *heads), lines)),
    ]


def losses(directory: Path, cells: Sequence[Row]) -> list[str]:
    """The section on losses of runs long enough to learn from text; nothing for other sweeps."""
    (steps,) = findings.tables_of(directory, steps=STEP_TIMES)
    known = steps.drop_nulls("loss").sort("step")
    lines = []
    for cell, name in parts.names_of(cells).items():
        for (run,), of_run in known.filter(pl.col("cell") == cell).group_by("run"):
            if len(of_run) < _LEARNING_STEPS:
                continue
            last = of_run["loss"].tail(_LAST_STEPS)
            row = f"{of_run['loss'][0]:.3f}", f"{last.mean():.3f}", f"{last.std():.3f}"
            lines.append((f"`{name}`", str(run), str(len(of_run)), *row))
    if not lines:
        return []
    heads = "first loss", f"mean of the last {_LAST_STEPS}", "standard deviation of these"
    return [
        "## Losses",
        "In nats a token. Cells of a seed begin with the same weights and see the same tokens.",
        "\n".join(table(("cell", "run", "steps", *heads), lines)),
    ]


def _span(values: pl.Series, factor: float) -> str:
    """The lowest to the highest of known values, as text."""
    if values.null_count():
        return NOTHING
    low, high = (factor * float(end) for end in (min(values), max(values)))
    if high < _LEAST:
        return f"< {_LEAST:g}"
    return "–".join(dict.fromkeys(significant(end, 3, decimals=2) for end in (low, high)))


@functools.cache
def _known() -> Files[SweepSpec]:
    return load_study(findings.CHECKOUT / "config").sweeps


def _view(sweep: str) -> tuple[str, str]:
    """The sweep that a directory is a view of, as its file is called, and the platform that it
    shows: "" if it shows all."""
    fitting = [
        name for name in (*_known(), *_known().bad) if sweep == name or sweep.startswith(f"{name}-")
    ]
    name = max(fitting, key=len, default=sweep)
    return name, sweep[len(name) + 1 :]


def _description(name: str) -> str:
    """What its file says that a sweep is for."""
    return _known()[name].description if name in _known() else name


def _made(side: Side, results: Path) -> str:
    """When, with what and on what."""
    if not any(map(completed, side.cells)):
        return f"{counted(len(side.runs), 'run')}, none of which completed."
    environment = parts.environment_of(environments(side.runs, results))
    told = [
        f"{parts.runs_in_words(side.runs)} of `{side.sweep}`, on {', '.join(side.gpu_names)}: "
        f"{_values(side.cells, 'warmup_steps')} warm-up and "
        f"{_values(side.cells, 'measured_steps')} measured steps, of "
        f"{_sequences(side.cells)} of "
        f"{_values(side.cells, 'sequence_length')} tokens, {_values(side.cells, 'precision')}. "
        f"Driver {environment['nvidia_driver']}, torch {environment['packages.torch']}. "
        "[Their hosts and commits](provenance.md).",
        *filter(None, [cell_axes.emulated_in_words(side.cells)]),
    ]
    return " ".join(told)


def _sequences(cells: Sequence[Row]) -> str:
    told = _values(cells, "global_batch_size")
    return f"{told} sequence{'s' if told != '1' else ''}"


def _values(cells: Sequence[Row], name: str) -> str:
    return " or ".join(str(value) for value in sorted({cell[name] for cell in cells}))


def _pairs(cells: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Cells that differ in one axis and in what follows from it, the later one first."""
    return [
        (later, earlier)
        for earlier, later in itertools.combinations(cells, 2)
        if completed(earlier) and completed(later) and len(_differing(earlier, later)) == 1
    ]


def _differing(earlier: Row, later: Row) -> set[str]:
    """The axes in which two cells differ by themselves."""
    names = {*cell_axes.differing([earlier, later], _FOLLOW)}
    # An axis that only some values of another have follows from that one.
    only_with = {name: cell_axes.AXES[name].field.axis.only_with for name in names}
    return {name for name, other in only_with.items() if not (other and other[0] in names)}
