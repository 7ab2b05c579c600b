"""Simple predictions without this model, on the same rows and in the same run, for comparison.

Each takes a fold and gives seconds, by line, for the rows that it can predict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median

from research.grouping import grouped
from research.projection.published import PublishedRun
from research.projection.splits import Fold, series, two_smallest
from workflow_lib.projection.layouts import Layout

Layouts = Mapping[int, Layout]
Seconds = dict[int, float]


def constant_throughput(fold: Fold, layouts: Layouts) -> Seconds:
    """Tokens per second and GPU as in the smallest fitted row of the series."""
    found: Seconds = {}
    for fitted, predicted in _by_series(fold):
        first = fitted[0] if fitted else None
        if first is None or first.tokens is None:
            continue
        of_a_token = _time(first) * first.gpus / first.tokens
        found |= {run.line: of_a_token * run.tokens / run.gpus for run in predicted if run.tokens}
    return found


def affine_law(fold: Fold, layouts: Layouts) -> Seconds:
    """a · (m + (p − 1)/v) + b through the two smallest fitted rows of the series that differ in m.

    A series without two such rows is not predicted.
    """
    found = {}
    for fitted, predicted in _by_series(fold):
        two = [run for run in two_smallest(fitted) if run.line in layouts] if fitted else []
        if len(two) < 2:
            continue
        (x, y), (s, t) = ([layouts[run.line].bubble for run in two], [_time(run) for run in two])
        slope = (t - s) / (y - x)
        offset = s - slope * x
        for run in predicted:
            if run.line in layouts:
                found[run.line] = slope * layouts[run.line].bubble + offset
    return found


def bubble_law(fold: Fold, layouts: Layouts) -> Seconds:
    """A twin's time, multiplied by m + (p − 1)/v of the whole model over that of the twin. The twin
    is the largest with as many layers per stage and all else equal except DP."""
    known = [run for run in fold.fitted if run.line in layouts]
    twins = grouped(known, lambda run: _stage_key(run, layouts[run.line]))
    found = {}
    for run in fold.predicted:
        layout = layouts.get(run.line)
        if layout and (own := twins.get(_stage_key(run, layout))):
            twin = max(own, key=lambda each: (each.gpus, each.order))
            found[run.line] = _time(twin) * layout.bubble / layouts[twin.line].bubble
    return found


def one_efficiency(fold: Fold, layouts: Layouts) -> Seconds:
    """Model FLOPs over a fitted share of the peak, and the pipeline's bubble. The share is the
    median of the fitted rows of the same precision. This is what llm-analysis does with one given
    efficiency."""
    known = [(layouts[run.line], run) for run in fold.fitted if run.line in layouts]
    shares = {
        precision: median(layout.ideal_s / _time(run) for layout, run in alike)
        for precision, alike in grouped(known, lambda each: each[0].precision).items()
    }
    predicted = [(layouts[run.line], run) for run in fold.predicted if run.line in layouts]
    return {
        run.line: layout.ideal_s / shares[layout.precision]
        for layout, run in predicted
        if layout.precision in shares
    }


BASELINES: Mapping[str, tuple[str, Callable[[Fold, Layouts], Seconds]]] = {
    "constant": ("constant tokens/s/GPU", constant_throughput),
    "affine": ("two-row affine law", affine_law),
    "bubble": ("bubble's law of a twin", bubble_law),
    "efficiency": ("one fitted efficiency", one_efficiency),
}


def _by_series(fold: Fold) -> Iterable[tuple[list[PublishedRun], list[PublishedRun]]]:
    known = {run.line for run in fold.fitted}
    for group in series((*fold.fitted, *fold.predicted)):
        yield (
            [run for run in group if run.line in known],
            [run for run in group if run.line not in known],
        )


def _stage_key(run: PublishedRun, layout: Layout) -> tuple[object, ...]:
    return (
        *(run.source, run.variant, run.site, run.gpu, run.precision, run.model, layout.tp),
        *(layout.cp, layout.ep, layout.micro_batch, layout.sequence_length, layout.micro_batches),
        *(layout.virtual_stages, layout.layers / layout.pp),
    )


def _time(run: PublishedRun) -> float:
    assert run.step_time_s is not None
    return run.step_time_s
