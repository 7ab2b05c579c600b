"""Predicts published runs from others, by splits that were fixed before.

``python -m research.projection validate ROWS.csv --output DIR`` writes ``validation.json``. Rows
are never fitted in the fold that predicts them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from research.grouping import grouped
from research.projection.baselines import BASELINES
from research.projection.layouts import Chunks, assumed_chunks, fits, usable
from research.projection.metrics import Coverage, Errors, confusion, ranking
from research.projection.predicting import Forecast, forecast
from research.projection.published import PublishedRun
from research.projection.reading import PUBLISHED, Unusable, read_published
from research.projection.splits import FITTED_KINDS, Split, layout_key, read_splits
from workflow_lib.feasibility import INTERVAL_KINDS
from workflow_lib.projection import kinds
from workflow_lib.projection.kinds import LEVELS
from workflow_lib.projection.layouts import Layout
from workflow_lib.words import counted

FORMAT = 4
#: why splits of these kinds are not run
_NOT_HERE = {
    "own": "published rows have no runs of this workflow; validate-own judges those",
    "power": "published rows have no power of nodes",
}
_NO_TIME = "it states neither a step's time nor a throughput and the batch"


def validate(rows: Path, also_fit: Path | None = None) -> dict[str, Any]:
    """Validate the projection by all splits of the rows of a file; returns the content of
    ``validation.json``. Rows of ``also_fit`` are fitted where the rules allow it, and not judged.
    Raises FileNotFoundError and RecordError."""
    judged, unusable = read_published(rows)
    others, useless = _others(judged, also_fit) if also_fit else ([], [])
    runs = sorted([*judged, *others], key=lambda run: run.order)
    chunks = assumed_chunks(runs)
    layouts, without = usable(runs, chunks)
    left_out = not_fitted(others, [*useless, *without])
    of_no_use = {-each.line for each in left_out}
    splits, digest = read_splits()
    return {
        "format": FORMAT,
        "rows": {
            "file": rows.name,
            "sha256": hashlib.sha256(rows.read_bytes()).hexdigest(),
            "read": len(judged) + len(unusable),
            "with_a_layout_and_a_time": sum(
                run.line in layouts and run.step_time_s is not None for run in judged
            ),
            "not_judged": [asdict(e) for e in not_judged(runs, [*unusable, *without], splits)],
            "also_fitted": sum(run.line not in of_no_use for run in others),
            "not_fitted": [asdict(each) for each in left_out],
            "shipped": _has_shipped(runs),
        },
        "splits_sha256": digest,
        "splits": {split.name: _split(split, runs, layouts, chunks) for split in splits},
    }


def _others(
    judged: Sequence[PublishedRun], path: Path
) -> tuple[list[PublishedRun], list[Unusable]]:
    """The rows of a file to be fitted, without those that are to be judged, and those that are of
    no use. Their lines are negative, so that no two rows have one line."""
    known = {run.identity for run in judged}
    runs, unusable = read_published(path)
    others = [replace(run, line=-run.line) for run in runs if run.identity not in known]
    return others, [replace(each, line=-each.line) for each in unusable]


def not_fitted(others: Iterable[PublishedRun], unusable: Iterable[Unusable]) -> list[Unusable]:
    """The rows of the other file that are of no use to a fit, with the reason, by line.

    ``others`` and ``unusable`` have the negative lines of that file.
    """
    found = {run.line: _NO_TIME for run in others if run.step_time_s is None}
    found |= {each.line: each.reason for each in unusable if each.line < 0}
    return [Unusable(-line, reason) for line, reason in sorted(found.items(), reverse=True)]


def not_judged(
    runs: Sequence[PublishedRun], unusable: Iterable[Unusable], splits: Iterable[Split]
) -> list[Unusable]:
    """The rows whose time no split predicts, with the reason, by line. ``unusable`` are those that
    are wrong or state too little."""
    found = {each.line: each.reason for each in unusable}
    fitted: dict[int, list[str]] = {}
    predicted: set[int] = set()
    fitting = [split for split in splits if split.kind in FITTED_KINDS]
    for split in fitting:
        folds = split.folds(runs)
        predicted |= {run.line for fold in folds for run in fold.predicted}
        for line in {run.line for fold in folds for run in fold.fitted}:
            fitted.setdefault(line, []).append(split.name)
    for run in runs:
        if run.line in found or run.line in predicted:
            continue
        if run.step_time_s is None:
            found[run.line] = _NO_TIME
        elif run.line in fitted:
            found[run.line] = f"it is only fitted, in {', '.join(fitted[run.line])}"
        else:
            found[run.line] = _not_chosen(run, fitting)
    return [Unusable(line, reason) for line, reason in sorted(found.items()) if line > 0]


def _not_chosen(run: PublishedRun, splits: Sequence[Split]) -> str:
    """The rule that the row misses of the split that it misses the fewest of."""
    missed = {split.name: split.missed(run) for split in splits}
    name = min(missed, key=lambda name: len(missed[name]))
    if not missed[name]:
        return f"by the rules of {name}, there is nothing to predict it from"
    fields = " and ".join(f"its {field} is {getattr(run, field)!r}" for field in missed[name])
    return f"no split chooses it; {name}, the nearest, does not because {fields}"


def _has_shipped(runs: Sequence[PublishedRun]) -> bool:
    """Whether all rows of the shipped file are among the runs."""
    shipped, _ = read_published(PUBLISHED)
    return {run.identity for run in shipped} <= {run.identity for run in runs}


def _split(
    split: Split,
    runs: Sequence[PublishedRun],
    layouts: Mapping[int, Layout],
    chunks: Chunks,
) -> dict[str, Any]:
    told = {
        "title": split.title,
        "kind": split.kind,
        "bar": split.rules.get("bar"),
        "goal": split.rules.get("goal"),
    }
    if split.kind == "memory":
        return told | _memory(split, runs, layouts)
    if split.kind not in FITTED_KINDS:
        return told | {"not_run": _NOT_HERE[split.kind]}
    forecasts: list[Forecast] = []
    without: list[Unusable] = []
    seconds: dict[str, dict[int, float]] = {name: {} for name in BASELINES}
    fitted = 0
    for fold in split.folds(runs):
        found, unusable = forecast(fold, chunks)
        forecasts += [each for each in found if each.run.line > 0]
        without += [each for each in unusable if each.line > 0]
        fitted = max(fitted, sum(run.line in layouts for run in fold.fitted))
        for name, (_, baseline) in BASELINES.items():
            seconds[name] |= baseline(fold, layouts)
    if not forecasts:
        return told | {"not_run": _why_not(split, runs, without)}
    return told | {
        "rows_fitted_at_most": fitted,
        "rows_not_predicted": [asdict(each) for each in without],
        **summary(forecasts),
        "baselines": {name: _baseline(forecasts, second) for name, second in seconds.items()},
        "predictions": [_prediction(each) for each in forecasts],
    }


def _why_not(split: Split, runs: Sequence[PublishedRun], without: Sequence[Unusable]) -> str:
    if without:
        return f"{counted(len(without), 'row')} to predict, and none states enough"
    chosen = len(split.chosen(runs))
    if not chosen:
        return "its rules choose none of the rows"
    return f"its rules choose {counted(chosen, 'row')}, and none to predict"


def summary(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """Errors, coverage and order of predictions."""
    named = sorted({each.kind for each in forecasts}, key=list(INTERVAL_KINDS).index)
    return {
        "errors": asdict(Errors.of([each.time.error for each in forecasts])),
        "intervals": _intervals(forecasts),
        "kinds": {name: _of_kind([e for e in forecasts if e.kind == name]) for name in named},
        "ranking": _ranking(forecasts),
    }


def _intervals(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    times = [each.time for each in forecasts]
    return {f"{level:.0%}": asdict(Coverage.of(times, level)) for level in LEVELS}


def _of_kind(forecasts: Sequence[Forecast]) -> dict[str, Any]:
    """Rows of one kind: how many, what intervals hold, and on which side the others lie."""
    ends = [(each.time.measured, each.time.interval(0.9)) for each in forecasts]
    return {
        "rows": len(forecasts),
        "for": kinds.widths(forecasts[0].kind).description,
        "intervals": _intervals(forecasts),
        "slower": sum(time > high for time, (_, high) in ends),
        "faster": sum(time < low for time, (low, _) in ends),
    }


def _ranking(forecasts: Iterable[Forecast]) -> dict[str, Any] | None:
    groups = grouped(forecasts, lambda each: layout_key(each.run))
    return ranking(
        [
            ([each.time.median for each in group], [each.time.measured for each in group])
            for group in groups.values()
            if len({each.layout for each in group}) > 1
        ]
    )


def _baseline(forecasts: Sequence[Forecast], seconds: Mapping[int, float]) -> dict[str, Any] | None:
    """Errors of a baseline, and of the projection on the same rows."""
    both = [each for each in forecasts if each.run.line in seconds]
    if not both:
        return None
    own = [seconds[each.run.line] / each.time.measured - 1 for each in both]
    return {
        "errors": asdict(Errors.of(own)),
        "projection_on_the_same_rows": asdict(Errors.of([each.time.error for each in both])),
    }


def _prediction(each: Forecast) -> dict[str, Any]:
    return {
        "line": each.run.line,
        "run": each.run.name,
        "source": each.run.source,
        "measured_s": each.time.measured,
        "median_s": each.time.median,
        "error": each.time.error,
        "intervals_s": {f"{level:.0%}": list(each.time.interval(level)) for level in LEVELS},
        "never_seen": list(each.prediction.unseen),
        "kind": each.kind,
    }


def _memory(
    split: Split, runs: Sequence[PublishedRun], layouts: Mapping[int, Layout]
) -> dict[str, Any]:
    chosen = [
        run
        for run in split.chosen(runs)
        if run.line > 0
        and run.line in layouts
        and (run.step_time_s is not None or run.out_of_memory)
    ]
    if not chosen:
        return {"not_run": "no row has a known layout"}
    verdicts = [(fits(layouts[run.line]), not run.out_of_memory) for run in chosen]
    stated = [verdict for run, verdict in zip(chosen, verdicts, strict=True) if run.recomputation]
    return {
        "rows": len(chosen),
        "confusion": confusion(verdicts),
        "confusion_where_recomputation_is_stated": confusion(stated),
    }
