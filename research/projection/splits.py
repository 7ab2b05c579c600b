"""Splits of published runs: the rows that each validation fits on, and those that it predicts.

The rules are in ``data/splits.toml``. A row that is predicted is never among those fitted.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from research.grouping import grouped
from research.projection.published import OF_A_RUN, PublishedRun, unnumbered

_DATA = resources.files("research.projection") / "data"
FILE = _DATA / "splits.toml"
#: splits that calibrate intervals, and judge nothing
CALIBRATION = _DATA / "calibration.toml"
#: the fewest layouts of one thing to train that only a source that tried many would tell
_UNTUNED_LAYOUTS = 3
#: kinds of splits for which published rows of training are fitted
FITTED_KINDS = ("weak", "strong", "model", "site", "twin", "layout")


@dataclass(frozen=True)
class Fold:
    """Rows to fit on and rows to predict, of one part of a split."""

    name: str
    fitted: tuple[PublishedRun, ...]
    predicted: tuple[PublishedRun, ...]


@dataclass(frozen=True)
class Split:
    """A split and its rules, as in its file."""

    name: str
    title: str
    kind: str
    rules: dict[str, Any]

    def chosen(self, runs: Sequence[PublishedRun]) -> list[PublishedRun]:
        """The rows that the split is about."""
        return _chosen(runs, self.rules.get("where", {}))

    def missed(self, run: PublishedRun) -> list[str]:
        """The fields for which the split does not choose a row; empty if it does."""
        return [
            name for name, wanted in self.rules["where"].items() if not _fits(run, name, wanted)
        ]

    def folds(self, runs: Sequence[PublishedRun]) -> list[Fold]:
        """The split's folds, of rows with a time; folds without a row to predict are left out."""
        timed = [run for run in runs if run.step_time_s is not None]
        chosen = self.chosen(timed)
        shared = _chosen(timed, self.rules["shared"]) if "shared" in self.rules else []
        if self.kind == "layout":
            chosen = _of_several_layouts(chosen, self.rules["least_layouts"])
            shared = self.chosen(timed)
        folds = _KINDS[self.kind](chosen, self.rules)
        found = []
        for name, fitted, predicted in folds:
            if self.kind == "layout":
                fitted = [run for run in shared if _model(run) != _model(predicted[0])]
            elif shared:
                known = {run.line for run in (*fitted, *predicted)}
                fitted = [*fitted, *(run for run in shared if run.line not in known)]
            if predicted:
                found.append(Fold(name, tuple(fitted), tuple(predicted)))
        return found


_Parts = tuple[str, list[PublishedRun], list[PublishedRun]]


def read_splits(file: Traversable = FILE) -> tuple[list[Split], str]:
    """The splits of a file, and its SHA-256."""
    content = file.read_bytes()
    tables = tomllib.loads(content.decode())
    tables.pop("format")
    splits = [Split(name, table["title"], table["kind"], table) for name, table in tables.items()]
    return splits, hashlib.sha256(content).hexdigest()


def _chosen(runs: Sequence[PublishedRun], where: dict[str, Any]) -> list[PublishedRun]:
    return [run for run in runs if all(_fits(run, name, wanted) for name, wanted in where.items())]


def _fits(run: PublishedRun, name: str, wanted: str | list[str]) -> bool:
    value = str(getattr(run, name))
    return value in wanted if isinstance(wanted, list) else bool(re.search(wanted, value))


def _weak(chosen: list[PublishedRun], rules: dict[str, Any]) -> list[_Parts]:
    fitted = [run for run in chosen if run.gpus <= rules["fit_gpus_at_most"]]
    known = {run.line for run in fitted}
    predicted = []
    for group in series(chosen):
        micro_batches = {run.micro_batches for run in group if run.line in known}
        predicted += [
            run
            for run in group
            if run.gpus >= rules["test_gpus_at_least"] and run.micro_batches in micro_batches
        ]
    return [("", fitted, predicted)]


def _strong(chosen: list[PublishedRun], _: dict[str, Any]) -> list[_Parts]:
    fitted, predicted = [], []
    for group in series(chosen):
        two = two_smallest(group)
        sizes = {(run.gpus, run.micro_batches) for run in two}
        # Runs of one size are on one side: which of them comes first must not matter.
        fitted += [run for run in group if (run.gpus, run.micro_batches) in sizes]
        if len(two) == 2:
            predicted += [run for run in group if (run.gpus, run.micro_batches) not in sizes]
    return [("", fitted, predicted)]


def series(rows: Iterable[PublishedRun]) -> list[list[PublishedRun]]:
    """Rows in series, each sorted by the number of GPUs. If rows with one key tell different things
    of the same number of GPUs and batch, the other parts of the notes, without numbers, separate
    series. Times have no part in this, because series decide which rows a fold fits."""
    found = []
    for group in grouped(rows, lambda row: row.series_key).values():
        parts = grouped(group, _told).values() if _clash(group) else [group]
        found += [sorted(each, key=lambda row: (row.gpus, row.order)) for each in parts]
    return found


def _clash(group: list[PublishedRun]) -> bool:
    alike = grouped(group, lambda row: (row.gpus, row.global_batch)).values()
    return any(len({_told(row) for row in each}) > 1 for each in alike)


def _told(row: PublishedRun) -> tuple[str, ...]:
    return tuple(sorted(unnumbered(part) for part in row.parts if not OF_A_RUN.match(part)))


def two_smallest(group: Sequence[PublishedRun]) -> list[PublishedRun]:
    """The row of a series with the fewest GPUs, and the next row with another number of
    micro-batches; only the first if there is none."""
    first = group[0]
    others = [run for run in group if run.micro_batches != first.micro_batches]
    return [first, *others[:1]]


def _left_out(of: Callable[[PublishedRun], str]) -> Callable[..., list[_Parts]]:
    def folds(chosen: list[PublishedRun], _: dict[str, Any]) -> list[_Parts]:
        names = sorted({of(run) for run in chosen})
        return [
            (
                name,
                [run for run in chosen if of(run) != name],
                [run for run in chosen if of(run) == name],
            )
            for name in names
        ]

    return folds


def _release(chosen: list[PublishedRun], rules: dict[str, Any]) -> list[_Parts]:
    """Each source is left out of whose stack others tell another release."""
    of_stacks = grouped(chosen, lambda run: run.stack).values()
    sources = [{run.source for run in of_stack} for of_stack in of_stacks]
    several = {source for each in sources if len(each) > 1 for source in each}
    folds = _left_out(lambda run: run.source)(chosen, rules)
    return [fold for fold in folds if fold[0] in several]


def _twin(chosen: list[PublishedRun], _: dict[str, Any]) -> list[_Parts]:
    """For each model with twins, a fold that predicts its whole rows from all other rows."""
    folds: list[_Parts] = []
    for name in sorted({run.model for run in chosen if run.is_twin}):
        predicted = [run for run in chosen if run.model == name and not run.is_twin]
        folds.append((name, [run for run in chosen if run not in predicted], predicted))
    return folds


def _model(run: PublishedRun) -> str:
    """The name of a run's model, which a source may have run with another vocabulary."""
    return run.shape.name if run.shape else ""


def layout_key(run: PublishedRun) -> tuple[object, ...]:
    """The values that runs share among which one layout could be chosen: source, GPU, model, batch,
    GPUs."""
    return (
        *(run.source, run.gpu, run.precision, run.model, run.layers),
        *(run.sequence_length, run.global_batch, run.gpus),
    )


def untuned(runs: Sequence[PublishedRun]) -> set[str]:
    """The sources that tell what they tried, and not what they chose: of one model, batch and
    number of GPUs they have three layouts or more."""
    return {run.source for run in _of_several_layouts(runs, _UNTUNED_LAYOUTS)}


def _of_several_layouts(chosen: Sequence[PublishedRun], least: int) -> list[PublishedRun]:
    return [
        run
        for group in grouped(chosen, layout_key).values()
        if len({_degrees(run) for run in group}) >= least
        for run in group
    ]


def _degrees(run: PublishedRun) -> tuple[object, ...]:
    return (
        *(run.tp, run.cp, run.pp, run.virtual_stages, run.micro_batch, run.ep),
        *(run.sharding, run.recomputation),
    )


_KINDS: dict[str, Callable[[list[PublishedRun], dict[str, Any]], list[_Parts]]] = {
    "weak": _weak,
    "strong": _strong,
    "model": _left_out(lambda run: run.model),
    "site": _left_out(lambda run: run.site),
    "twin": _twin,
    "layout": _left_out(_model),
    "stack": _left_out(lambda run: run.stack),
    "release": _release,
}
