"""Projects a model to more GPUs than there are: layouts ranked, each value with intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, get_args

import polars as pl

from workflow_lib import formulas
from workflow_lib.memory import Fit
from workflow_lib.projection import hierarchical_fit
from workflow_lib.projection.candidates import Candidate, candidates, considered
from workflow_lib.projection.gpu_power import GpuPower, Levels, gpu_power, levels
from workflow_lib.projection.kinds import LEVELS, Widths
from workflow_lib.projection.layouts import Layout
from workflow_lib.projection.machines import Machine
from workflow_lib.projection.own_stack import OwnStack
from workflow_lib.projection.timed_terms import measured
from workflow_lib.records.labels import labels
from workflow_lib.records.model import Model
from workflow_lib.records.reading import RecordError
from workflow_lib.words import counted, power_of_ten

#: coverage of the intervals by which two layouts are told apart
_TOLD_APART = 0.9


def headings(tokens: float) -> tuple[tuple[str, str], ...]:
    """Measures with an interval, as (name, heading), of a training on so many tokens."""
    whole = f"for {power_of_ten(tokens)} tokens"
    return (
        ("step_time_s", "s/step"),
        ("tokens_per_s_per_gpu", "tokens/s/GPU"),
        ("mfu_causal", "MFU"),
        ("power_per_gpu_w", "W/GPU"),
        ("energy_per_token_j", "J/token"),
        ("gpu_hours", f"GPU-hours {whole}"),
        ("energy_mwh", f"MWh {whole}"),
    )


_RATES = ("tokens_per_s_per_gpu", "mfu_causal")
#: how nodes are cooled
COOLINGS = ("air", "water", "immersion")


@dataclass(frozen=True)
class Facility:
    """What the facility adds to the GPUs; a value that is not given is left out."""

    #: power of a node without its GPUs: processors, memory, switches, adapters, fans
    node_rest_w: float | None = None
    #: the facility's power divided by that of its nodes
    pue: float | None = None
    #: how its nodes are cooled, one of :data:`COOLINGS`: it makes a difference of more than a
    #: kilowatt a node at equal work
    cooling: str | None = None


@dataclass(frozen=True)
class Prices:
    """What a site or a provider asks for; None where it was not given."""

    per_gpu_hour: float | None
    per_kwh: float | None
    #: ISO 4217
    currency: str


@dataclass(frozen=True)
class Projected:
    """A layout with its predicted values. Energy is that of GPUs, by their sensors."""

    candidate: Candidate
    #: its name among the layouts that it was projected with
    label: str
    prediction: hierarchical_fit.Prediction
    power: GpuPower
    widths: Widths
    model: Model
    #: tokens of the whole training
    tokens: float

    @property
    def step_time_s(self) -> float:
        """The median step time."""
        return self.prediction.median_s

    def values(self) -> dict[str, tuple[float, float]]:
        """Each measure's median, and the standard deviation of its logarithm."""
        layout = self.candidate.layout
        time, sd = self.step_time_s, self.prediction.sd
        rate = layout.tokens / (time * layout.gpus)
        flops = formulas.flops_per_token(self.model).causal
        joules = self.power.power_w / rate
        power_sd = self.power.sd_w / self.power.power_w
        both = math.hypot(sd, power_sd)
        return {
            "step_time_s": (time, sd),
            "tokens_per_s_per_gpu": (rate, sd),
            "mfu_causal": (flops * rate / layout.machine.peak("BF16"), sd),
            "power_per_gpu_w": (self.power.power_w, power_sd),
            "energy_per_token_j": (joules, both),
            "gpu_hours": (self.tokens / rate / 3600, sd),
            "energy_mwh": (self.tokens * joules / 3.6e9, both),
        }

    def interval(self, measure: str, level: float) -> tuple[float, float]:
        """The lower and upper end of a measure's interval with coverage ``level``. The upper end of
        a GPU's power is at most its limit."""
        median, sd = self.values()[measure]
        if measure == "power_per_gpu_w":
            reach = math.exp(NormalDist().inv_cdf((1 + level) / 2) * sd)
            limit = self.candidate.layout.machine.power_limit_w
            return median / reach, min(median * reach, limit)
        low, high = self.widths.interval(1.0, sd, level)
        # A rate falls as far as a time grows.
        return (median / high, median / low) if measure in _RATES else (median * low, median * high)

    def row(self) -> dict[str, Any]:
        """The layout as a row of the table."""
        degrees, training = self.candidate.degrees, self.candidate.training
        row: dict[str, Any] = {
            "layout": self.label,
            "gpus": degrees.world_size,
            "tp": degrees.tp,
            "pp": degrees.pp,
            "virtual_stages": degrees.virtual_stages,
            "dp": degrees.dp,
            "ep": degrees.ep,
            "micro_batch_size": training.micro_batch_size,
            "global_batch_size": training.global_batch_size,
            "zero_stage": training.zero_stage,
            "recomputation": training.recomputation,
            "fits": self.candidate.fits,
            "interval_kind": self.widths.kind,
            "memory_per_gpu_bytes": self.candidate.memory.total,
            "memory_used_per_gpu_bytes": self.candidate.memory.used(
                self.candidate.layout.machine.memory_bytes
            ),
        }
        for measure, (median, _) in self.values().items():
            row[measure] = median
            for level in LEVELS:
                low, high = self.interval(measure, level)
                row[f"{measure}_low_{level:.0%}".rstrip("%")] = low
                row[f"{measure}_high_{level:.0%}".rstrip("%")] = high
        return row


def project(
    model: Model,
    machine: Machine,
    platform: str,
    gpus: int,
    global_batch: int,
    tokens: float,
    stack: OwnStack,
) -> list[Projected]:
    """All layouts: first those that surely fit, then those that perhaps do, then the others, each
    sorted from the fastest to the slowest.

    Raises RecordError if no layout can run.
    """
    tried = list(candidates(model, machine, gpus, global_batch))
    if not tried:
        raise RecordError(
            f"{model.name} has no layout on {counted(gpus, 'GPU')} with a batch of "
            f"{counted(global_batch, 'sequence')}: use a number of GPUs that nodes of "
            f"{machine.gpus_per_node} share evenly, or a batch, that tp × pp × dp can divide"
        )
    known = levels(stack.runs, machine.gpu)
    projected = predicted(tried, platform, stack, known, model, tokens)
    order = get_args(Fit)
    return sorted(projected, key=lambda row: (order.index(row.candidate.fits), row.step_time_s))


def predicted(
    tried: Sequence[Candidate],
    platform: str,
    stack: OwnStack,
    known: Levels,
    model: Model,
    tokens: float,
) -> list[Projected]:
    """The candidates with their predicted values."""
    times = stack.predict([candidate.layout for candidate in tried], platform)
    names = labels([candidate.row for candidate in tried])
    return [
        Projected(
            candidate,
            name,
            time,
            gpu_power(candidate.layout, time, known),
            stack.widths_of(candidate.layout, time),
            model,
            tokens,
        )
        for candidate, name, time in zip(tried, names, times, strict=True)
    ]


def indistinguishable(rows: Sequence[Projected], stack: OwnStack, platform: str) -> list[Projected]:
    """The layouts that fit as surely as the first and whose step, over that of the first, may be as
    short by a 90 % interval of the ratio. The first, whose median is the shortest, is one of them.

    What is not known of a rate or a fabric counts only as far as it bears on the two differently.
    """
    first = rows[0]
    base = stack.row(first.candidate.layout, platform)

    def may_be_as_short(row: Projected) -> bool:
        log_ratio, variance = stack.fit.contrast(stack.row(row.candidate.layout, platform), base)
        return log_ratio <= Widths.log_reach((row.widths, first.widths), variance, _TOLD_APART)

    alike = [row for row in rows[1:] if row.candidate.fits == first.candidate.fits]
    return [first, *filter(may_be_as_short, alike)]


def recommended(rows: Sequence[Projected]) -> Projected | None:
    """The fastest layout that surely fits into memory, of those that ``project`` ranked; None if
    none does."""
    return rows[0] if rows[0].candidate.fits == "yes" else None


def table(rows: Iterable[Projected], alike: Sequence[Projected]) -> pl.DataFrame:
    """One row for each layout; ``told_apart`` says whether the first is told apart from it, null
    where that was not asked, as it fits less surely or more."""
    names = {row.label for row in alike}
    fits = alike[0].candidate.fits
    return pl.DataFrame(
        [
            projected.row()
            | {
                "told_apart": projected.label not in names
                if projected.candidate.fits == fits
                else None
            }
            for projected in rows
        ]
    )


def basis(best: Projected, stack: OwnStack, known: Levels, platform: str) -> list[tuple[str, str]]:
    """How each part of a projection is known, as (what, how): measured, taken from published runs,
    assumed, or extrapolated."""
    layout = best.candidate.layout
    unseen = set(best.prediction.unseen)
    errors = [abs(residual.error) for residual in stack.residuals]
    here = sum(run.gpu == layout.machine.gpu for run in stack.runs)
    own = (
        f"{counted(len(stack.runs), 'cell')} of this workflow on up to "
        f"{counted(stack.largest_own, 'GPU')}, {here} of "
        f"them on {layout.machine.gpu}"
    )
    lines = [
        ("what the intervals are for", best.widths.description),
        (
            "speed of this workflow's stack on this GPU",
            "not measured: intervals include the differences between stacks"
            if "stack" in unseen
            else f"measured: {own}; each predicted from cells of other layouts is off by "
            f"{sum(errors) / len(errors):.1%} on average and {max(errors):.1%} at most",
        ),
        (
            "this layer with this TP, micro-batch and recomputation",
            "not measured: its parts are projected" if "layer" in unseen else "measured",
        ),
        (
            "rates of the parts of a step, growth with ranks",
            f"taken from published runs of NVIDIA's stack (BF16, up to {stack.largest_published} "
            "H100) and from those cells together",
        ),
        (
            "cost of a step besides its micro-batches, on this fabric",
            "not measured: it differs fivefold between fabrics of one link rate"
            if "fabric" in unseen
            else "measured",
        ),
        *_exchanges(best, stack, platform),
        *(
            (
                f"{what} by this workflow's stack",
                "not measured: intervals include the differences between stacks"
                if effect in unseen
                else "measured",
            )
            for effect, what, has in (
                ("experts", "experts", layout.shape.experts > 0),
                ("uncompiled", "layers that are not compiled", not layout.compiled),
            )
            if has
        ),
        *_measured_alone(layout, stack),
        ("which layouts were considered", considered(best.model)),
        ("power of a GPU that computes or waits", known.source),
        ("power of a GPU that communicates", "not measured: between those two"),
    ]
    if layout.gpus > stack.largest_own:
        lines.append(
            ("number of GPUs", f"extrapolated: {layout.gpus} from {stack.largest_own} of our own")
        )
    if layout.gpus > stack.largest_published:
        lines.append(
            (
                "number of GPUs",
                f"extrapolated beyond the published runs, too: up to {stack.largest_published}",
            )
        )
    return lines


def _exchanges(best: Projected, stack: OwnStack, platform: str) -> Iterator[tuple[str, str]]:
    """How exchanges are known: measured only where runs over the same links or fabric are
    fitted."""
    layout = best.candidate.layout
    machine = layout.machine
    if layout.gpus == 1:
        return
    shared = [run for run in stack.runs if run.layout.gpus > 1]
    here = [run for run in shared if run.platform == platform]
    known = here or [run for run in shared if run.gpu == machine.gpu] or shared
    how = "assumed: published runs' rates; intervals include the differences between stacks"
    if known:
        gpus = counted(max(run.layout.gpus for run in known), "GPU")
        how = (
            f"{'measured' if here else 'assumed as there'}: {counted(len(known), 'cell')} on up to "
        )
        how += f"{gpus} of {', '.join(sorted({run.platform for run in known}))}"
    yield "exchanges within a node", how
    if layout.gpus <= machine.gpus_per_node:
        return
    across = [run for run in here if run.layout.gpus > run.gpus_per_node]
    rate = machine.network_bytes_per_s * machine.gpus_per_node * 8e-9
    yield (
        "exchanges between nodes",
        f"measured: {counted(len(across), 'cell')} across nodes of {platform}"
        if across
        else f"assumed: {rate:g} Gb/s a node, by {machine.network_source}, used as well as "
        "published runs use theirs; nobody measured this fabric",
    )


def _measured_alone(layout: Layout, stack: OwnStack) -> list[tuple[str, str]]:
    """Which parts of a layout take times that were measured alone, and whose lines were refused."""
    gpu = layout.machine.gpu
    found = measured(layout, stack.rates).items()
    names = dict.fromkeys(name.removesuffix(" alone") for name, seconds in found if seconds)
    lines = [("parts that were measured alone on this GPU", ", ".join(names))] if names else []
    for (of, part, ranks), why in stack.rates.refused.items():
        if of == gpu:
            lines.append((f"{part} of {ranks} measured alone", f"refused: {why}"))
    return lines


def facility_mwh(
    gpus_mwh: float, gpu_hours: float, gpus_per_node: int, of: Facility
) -> float | None:
    """Energy at the facility's meter in MWh; None if the power of the rest of a node
    is not given."""
    if of.node_rest_w is None:
        return None
    nodes_mwh = gpus_mwh + of.node_rest_w * gpu_hours / gpus_per_node / 1e6
    return nodes_mwh * (of.pue or 1.0)
