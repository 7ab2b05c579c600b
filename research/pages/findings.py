"""The pages of docs/results: what the rebuilt evidence says. No number of them is typed by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from research.pages import parts
from research.pages.tables import document
from workflow_lib.comparison import sentences
from workflow_lib.comparison.sides import Side, read_side, read_sides
from workflow_lib.comparison.verdicts import TOLD_APART
from workflow_lib.records.columns import Column
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.training import NATIVE
from workflow_lib.report.figures.cell_names import Row, completed, completed_runs
from workflow_lib.report.figures.numbers import significant
from workflow_lib.table_files import read_table

CHECKOUT = Path(__file__).parents[2]
DIRECTORY = CHECKOUT / "docs" / "results"
NAME = "llama3-8b-on-two-h200.md"
#: what a page begins with that is made of archives alone
NOTICE = "<!-- Made by `python -m docs.evidence --write` from the archives in evidence/. -->"
LAYOUTS, OVERLAP = "evidence-llama3-8b-x2", "evidence-overlap-x2"
#: has the two fastest layouts again, too, in runs that recorded what the allocator did
TRAINERS = "evidence-trainers-8b-x2"
TRAINERS_LAYOUTS = "evidence-trainers-layouts-x2"
DEEPSPEED = "evidence-deepspeed-8b-x2"

_SWEEPS = CHECKOUT / "config" / "sweeps"

ABOUT_LAYOUTS = "Temperature, power, clock, efficiency and throughput"
#: figures of the sweeps: the stem, and what it shows
_FIGURES = {
    LAYOUTS: ("parallelism-llama3-8b", ABOUT_LAYOUTS),
    OVERLAP: ("optimisation-h200x2-llama3-8b", "The same cells without and with overlap"),
}


def files(rebuilt: Path) -> dict[Path, str]:
    """The page of layouts and its figures, from the rebuilt archives: each path and its text."""
    found = {
        DIRECTORY / "images" / f"{sweep}.svg": (
            directory_of(rebuilt, sweep) / "figures" / f"{stem}.svg"
        ).read_text(encoding="utf-8")
        for sweep, (stem, _) in _FIGURES.items()
    }
    return {DIRECTORY / NAME: page(rebuilt), **found}


def directory_of(rebuilt: Path, sweep: str) -> Path:
    """Where the tables and figures of a sweep are, whose archive has its name."""
    return rebuilt / sweep / "results" / "sweeps" / sweep


def sweeps_of(rebuilt: Path) -> list[Path]:
    """The directories of all sweeps, in the order of their archives."""
    return sorted(rebuilt.glob("*/results/sweeps/*"))


def tables_of(directory: Path, **tables: Sequence[Column]) -> list[pl.DataFrame]:
    """Tables of a sweep, by their names and columns."""
    paths = SweepPaths(directory)
    return [read_table(paths.table(name), columns) for name, columns in tables.items()]


def _sides(rebuilt: Path) -> tuple[Side, Side]:
    return read_sides(directory_of(rebuilt, LAYOUTS), directory_of(rebuilt, OVERLAP), ("A", "B"))


def headline(rebuilt: Path) -> str:
    """What the README opens with: the fastest layout and the next, and both in later runs."""
    layouts, _ = _sides(rebuilt)
    named = parts.names_of(layouts.cells)
    first, second, *_ = _by_speed(layouts.cells)
    row = _contrast(first, second, layouts, "tokens_per_s_per_gpu")
    if row["verdict"] not in TOLD_APART:
        raise ValueError(f"the fastest layout is not told apart: {row['in_words']}")
    return (
        f"On {first['gpus']} {first['gpu_name']} of one host, {first['completed']} runs each, "
        f"`{named[first['cell']]}` trains Llama 3 8B fastest of {len(layouts.cells)} layouts: "
        f"{parts.value_of(first, 'tokens_per_s_per_gpu')} tokens/s per GPU, {_percent(row)} more "
        f"than the next, `{named[second['cell']]}`. {_again(rebuilt)}"
    )


def _again(rebuilt: Path) -> str:
    """What later runs, which recorded what the allocator did, say of the two fastest layouts."""
    side = read_side(directory_of(rebuilt, TRAINERS), TRAINERS)
    first, second = (
        next(
            cell
            for cell in side.cells
            if (cell["zero_stage"], cell["precision"], cell["recomputation"])
            == (stage, "bf16", "none")
        )
        for stage in (1, 3)
    )
    row = _contrast(first, second, side, "tokens_per_s_per_gpu")
    pressed = sentences.memory_pressure("the faster", completed_runs(side.runs_of(first)))
    said = f"Later runs of both, by a later engine on two other GPUs, say {_percent(row)}"
    return f"{said}, with {pressed}." if pressed else f"{said}."


def trainers(rebuilt: Path) -> str:
    """What a token costs by each trainer in each precision, and whether the two cheapest ones are
    told apart."""
    side = read_side(directory_of(rebuilt, TRAINERS), TRAINERS)
    divided = [cell for cell in filter(completed, side.cells) if cell["zero_stage"] == 3]
    told = " ".join(_of_precision(divided, side, precision) for precision in ("bf16", "fp8"))
    return (
        f"A token of Llama 3 8B on {divided[0]['gpus']} {divided[0]['gpu_name']}, with weights and "
        f"optimizer divided, by trainer. {told}"
    )


def _of_precision(cells: Iterable[Row], side: Side, precision: str) -> str:
    chosen = (cell for cell in cells if cell["precision"] == precision)
    first, second, *others = sorted(chosen, key=lambda cell: cell["energy_per_token_j"])
    told = ", ".join(
        f"{_trainer(cell)} {parts.value_of(cell, 'energy_per_token_j')} J "
        f"({parts.value_of(cell, 'tokens_per_s_per_gpu')} tokens/s per GPU)"
        for cell in (first, second, *others)
    )
    row = _contrast(first, second, side, "tokens_per_j")
    differ = "surely differ" if row["verdict"] in TOLD_APART else "may be alike"
    return f"In {precision}: {told}; the first two {differ}."


def _contrast(first: Row, second: Row, side: Side, measure: str) -> Row:
    (row,) = (r for r in parts.contrasts([(first, second)], side) if r["measure"] == measure)
    return row


def _trainer(cell: Row) -> str:
    return "ours" if cell["trainer"] == NATIVE else str(cell["trainer"])


def _percent(row: Row) -> str:
    low, high = ((row[end] - 1) * 100 for end in ("wide_low", "wide_high"))
    return f"{significant(low, 2)} to {significant(high, 2)} %"


def page(rebuilt: Path) -> str:
    """What four layouts and overlap gave on two GPUs."""
    layouts, overlap = _sides(rebuilt)
    ordered = _by_speed(layouts.cells)
    pairs = [(ordered[0], other) for other in ordered[1:]]
    # Without overlap first, so that a gain of overlap has a plus.
    of_overlap = [
        (on, off)
        for on in overlap.cells
        for off in overlap.cells
        if on["overlap"] and not off["overlap"] and on["parallelism"] == off["parallelism"]
    ]
    return document(
        NOTICE,
        "# Which layout trains Llama 3 8B fastest on two H200?",
        f"{headline(rebuilt)} The table is of one model on one host on one day. It says nothing "
        "about other models, hosts or numbers of GPUs.",
        _made(layouts, overlap),
        "## Layouts",
        parts.table_of(layouts, ordered),
        parts.note(layouts),
        _figure(LAYOUTS),
        "## What the differences between layouts support",
        parts.words(layouts, pairs),
        "## Overlap, off and on",
        parts.table_of(overlap, list(overlap.cells)),
        _figure(OVERLAP),
        parts.words(overlap, of_overlap),
        "## What is missing",
        "\n".join(
            [*parts.failed_runs(layouts), *parts.failed_runs(overlap), *_unmeasured(rebuilt)]
        ),
        "## Make this page again",
        "`make evidence` checks the raw files in [the archives](../../evidence/README.md) against "
        "their checksums, and makes every table, figure and page from them, without torch and "
        "without a GPU. `rebuilt/evidence/` then holds a report of each sweep, with all measures, "
        "every run, and the reasons for missing values.",
    )


def _made(layouts: Side, overlap: Side) -> str:
    """When, with what and on what."""
    before = {(run["cell"], run["run"]) for run in layouts.runs}
    more = [run for run in overlap.runs if (run["cell"], run["run"]) not in before]
    cell = layouts.cells[0]
    environment = parts.environment_of(layouts.environment, overlap.environment)
    return (
        f"{parts.runs_in_words(layouts.runs)} are of `{LAYOUTS}`, submitted in random order in "
        f"blocks of one run of each cell. `{OVERLAP}` needs {parts.runs_in_words(more)} besides "
        f"them. All went through Slurm. A run has {cell['warmup_steps']} warm-up steps "
        f"and {cell['measured_steps']} measured steps, of {cell['global_batch_size']} sequences of "
        f"{cell['sequence_length']} tokens, in micro-batches of {cell['micro_batch_size']}; "
        f"{cell['precision']}, compiled layers. Power limit "
        f"{parts.value_of(cell, 'power_limit_w')} W, driver {environment['nvidia_driver']}, "
        f"torch {environment['packages.torch']}. "
        "[Their hosts and commits](provenance.md)."
    )


def _by_speed(cells: Iterable[Row]) -> list[Row]:
    done = [cell for cell in cells if completed(cell)]
    return sorted(done, key=lambda cell: -float(cell["tokens_per_s_per_gpu"]))


def _figure(sweep: str) -> str:
    _, about = _FIGURES[sweep]
    return (
        f"![{about}](images/{sweep}.svg)\n\n"
        f"*{about}: markers and bars are medians, whiskers the range of the runs.*"
    )


def _unmeasured(rebuilt: Path) -> list[str]:
    """A line for each sweep of evidence of which there is no archive."""
    measured = [path.name for path in sweeps_of(rebuilt)]
    names = sorted(path.stem for path in _SWEEPS.glob("evidence-*.yaml"))
    # A sweep of several platforms has a view of each.
    views = [name for name in measured if name not in names]
    return [
        f"- `{name}`: no run was measured."
        for name in names
        if name not in measured and not any(view.startswith(f"{name}-") for view in views)
    ]
