"""Predicts times of rows from other rows, with the intervals of their kind."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

from research.projection.layouts import Chunks, usable
from research.projection.metrics import Quantity
from research.projection.published import PublishedRun
from research.projection.reading import Unusable
from research.projection.splits import Fold, untuned
from workflow_lib.projection import hierarchical_fit, kinds, step_model
from workflow_lib.projection.layouts import Layout

#: sources with several stacks, which the notes name
_NAMED = ("NVIDIA dgxc-benchmarking",)


@dataclass(frozen=True)
class Forecast:
    """The prediction for a run."""

    run: PublishedRun
    layout: Layout
    #: of :data:`workflow_lib.feasibility.INTERVAL_KINDS`
    kind: str
    prediction: hierarchical_fit.Prediction

    @property
    def group(self) -> str:
        """The group of like rows, of those of its kind."""
        of = {"stack": self.run.stack, "release": self.run.source, "site": self.run.site}
        shape = self.run.shape
        return of.get(self.kind, f"{self.run.stack}: {shape.name if shape else self.run.model}")

    @cached_property
    def time(self) -> Quantity:
        """Seconds of a step. No row of its group has a part in the widths of its intervals."""
        assert self.run.step_time_s is not None
        widths = kinds.widths(self.kind, without=self.group)
        return Quantity(self.run.step_time_s, self.prediction.median_s, self.prediction.sd, widths)


def published_row(run: PublishedRun, layout: Layout) -> hierarchical_fit.Row:
    """A published run as a row of the model, to be fitted."""
    assert run.step_time_s is not None
    return replace(unknown_row(run, layout), time_s=run.step_time_s)


def unknown_row(run: PublishedRun, layout: Layout) -> hierarchical_fit.Row:
    """A published run as a row without its time, to be predicted."""
    software = run.variant if run.source.startswith(_NAMED) else ""
    release = (run.configuration.container or run.source, software, run.precision)
    layer = (
        *(release, run.gpu, layout.shape, layout.tp, layout.cp, layout.ep, layout.micro_batch),
        *(layout.sequence_length, layout.sharding, layout.recomputation),
    )
    groups: dict[str, Hashable] = {
        "stack": (run.stack, run.gpu, run.precision),
        "release": release,
        "layer": layer,
        "stage": (layer, *step_model.rank_of(layout)),
        "fabric": (run.source, run.site, run.precision, layer, layout.pp, layout.virtual_stages),
        "series": run.series_key,
        "host": run.site,
    }
    if run.gpus > run.gpus_per_node:
        groups["site"] = run.site
    return hierarchical_fit.Row(
        seconds=step_model.seconds(layout),
        groups=groups,
        kind=step_model.kind(layout),
        doublings=step_model.doublings(layout),
    )


def forecast(fold: Fold, chunks: Chunks) -> tuple[list[Forecast], list[Unusable]]:
    """The fold's predictions, and the rows that cannot be predicted with the reason. If a row does
    not state its chunks, those of ``chunks`` are taken."""
    fitted, _ = usable(fold.fitted, chunks)
    predicted, unusable = usable(fold.predicted, chunks)
    fit = hierarchical_fit.fit(
        step_model.PROBLEM,
        [published_row(r, fitted[r.line]) for r in fold.fitted if r.line in fitted],
    )
    runs = [run for run in fold.predicted if run.line in predicted]
    found = fit.predict([unknown_row(run, predicted[run.line]) for run in runs])
    sources = untuned([*fold.fitted, *fold.predicted])
    return [
        Forecast(
            run,
            predicted[run.line],
            kinds.kind(each.unseen, run.source in sources, predicted[run.line].pp > 1),
            each,
        )
        for run, each in zip(runs, found, strict=True)
    ], unusable
