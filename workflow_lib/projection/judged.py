"""Which rows a validation does not judge, or cannot fit besides, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workflow_lib.projection.published import PublishedRun
from workflow_lib.projection.reading import Unusable
from workflow_lib.projection.splits import FITTED_KINDS, Split

_NO_TIME = "it states neither a step's time nor a throughput and the batch"


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
