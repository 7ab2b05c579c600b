"""The model of a step: its rates, effects and spreads, and which rows share which."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import replace

from workflow_lib.intervals import hosts
from workflow_lib.projection import hierarchical_fit, step_terms, timed_terms
from workflow_lib.projection.hierarchical_fit import EffectKind, Prior, Problem
from workflow_lib.projection.layouts import Layout
from workflow_lib.projection.part_times import Rates

#: Priors of the factors over the peak: medians, and standard deviations of logarithms. Products
#: reach 60 to 80 % of a datasheet's bf16 peak, attention about half. Of communication that runs
#: beside computation, a fifth to a half is not hidden.
_RATES: Mapping[str, Prior] = {
    "product": Prior(math.log(1.4), 0.12),
    "product FP8": Prior(math.log(1.8), 0.18),
    "weight": Prior(math.log(0.5), 0.7),
    "attention": Prior(math.log(2.0), 0.25),
    "element": Prior(math.log(1.3), 0.35),
    "head": Prior(math.log(1.4), 0.2),
    "tensor": Prior(math.log(0.6), 0.6),
    "context": Prior(math.log(0.2), 1.0),
    "routed": Prior(math.log(0.3), 0.8),
    "expert": Prior(math.log(0.5), 0.7),
    "gather": Prior(math.log(0.5), 0.7),
    "send": Prior(math.log(0.3), 0.8),
    "launch": Prior(math.log(0.3), 1.0),
    "reduce": Prior(math.log(1.2), 0.5),
    "optimiser": Prior(math.log(1.5), 0.5),
    "constant": Prior(math.log(2.0), 0.7),
}
#: Priors of the factors of parts that were timed alone, over those times. Alone they differ by what
#: a line leaves out. Of exchanges beside computation a fifth to a half is not hidden, as above.
#: What replicas exchange once a step is already counted without what computation can hide.
_MEASURED_RATES: Mapping[str, Prior] = {
    **dict.fromkeys(
        (*timed_terms.PASS_ALONE, timed_terms.STEP_ALONE, timed_terms.OPTIMISER_ALONE),
        Prior(0.0, 0.1),
    ),
    **dict.fromkeys(timed_terms.PASS_BESIDE, Prior(math.log(0.32), 0.46)),
    timed_terms.STEP_BESIDE: Prior(0.0, 0.5),
}
_PASS_PARTS = (*step_terms.MICRO_BATCH_PARTS, "product FP8")

#: kinds of effects by which rows differ, and how much
_EFFECTS: Mapping[str, EffectKind] = {
    # The one factor of a stack on a GPU in a precision.
    "stack": EffectKind("pass", 0.15),
    # How much slower passes of this workflow's stack are on several GPUs than parts say, with rates
    # from another stack. How well a stack hides exchanges is as much its own as its products, and
    # rows of one GPU say nothing of it. So it may differ as much as stacks do.
    "exchange": EffectKind("pass", 0.15),
    # How much slower its passes are where torch.compile does not fuse them, and with experts, whose
    # rates are those of published runs. Both may differ as much as stacks do.
    "uncompiled": EffectKind("pass", 0.15),
    "experts": EffectKind("pass", 0.15),
    # A release of the stack.
    "release": EffectKind("pass", 0.03, estimated=True),
    # A layer of one width, degrees, micro-batch and sequence length in a release. A twin has the
    # same layer as its model.
    "layer": EffectKind("pass", 0.03, estimated=True),
    # A rank of so many layers and chunks: not all of a rank's time is in proportion to its layers.
    # A twin has the same ranks as its model.
    "stage": EffectKind("pass", 0.01, estimated=True),
    # Another site with the same software: one host, and several nodes, which differ by 8 % (six
    # submitters, with mixed software rounds).
    "host": EffectKind("both", hosts.BUSY_SPREAD.predictive_sd),
    "site": EffectKind("both", 0.08),
    # The fixed cost on a fabric, which differs fivefold at one link rate.
    "fabric": EffectKind("step", 0.7),
    # How a series grows with its ranks.
    "series": EffectKind("growth", 0.003, estimated=True),
}
#: a doubling of GPUs beyond one node costs about half a percent. Of that the jitter of steps that
#: wait once explains 0.09 (docs/results/jitter.md), which is a lower bound and so no prior.
_GROWTH = Prior(0.005, 0.01)


def kind(layout: Layout) -> str:
    """The class of a layout for mean growth and noise: by its precision."""
    return "FP8" if layout.precision == "FP8" else "BF16"


PROBLEM = Problem(
    pass_parts=_PASS_PARTS,
    step_parts=step_terms.STEP_PARTS,
    rates=_RATES,
    growth={"BF16": _GROWTH, "FP8": _GROWTH},
    effects=_EFFECTS,
    noise_sd={"BF16": 0.01, "FP8": 0.01},
)
#: with the parts of rows of this workflow whose rates were measured alone
PROBLEM_WITH_MEASURED = replace(
    PROBLEM,
    pass_parts=(*_PASS_PARTS, *timed_terms.PASS_PARTS),
    step_parts=(*step_terms.STEP_PARTS, *timed_terms.STEP_PARTS),
    rates={**_RATES, **_MEASURED_RATES},
)


def seconds(layout: Layout) -> dict[str, float]:
    """The seconds of a layout's parts at the peak; products in FP8 are a part of their own."""
    parts = step_terms.terms(layout)
    if layout.precision == "FP8":
        parts["product FP8"] = parts.pop("product")
    return parts


def doublings(layout: Layout) -> float:
    """How often the GPUs of one node were doubled; 0 within a node."""
    return max(0.0, math.log2(layout.gpus / layout.machine.gpus_per_node))


def own_row(
    layout: Layout, platform: str, host: str | None = None, rates: Rates | None = None
) -> hierarchical_fit.Row:
    """A layout of this workflow's own stack on a platform as a row, to be predicted. Without
    ``host`` it is on a host that was not measured, because hosts of one kind differ. With ``rates``
    the parts that they have take the measured times."""
    stack = ("Triptych", layout.precision)
    # A twin's layer is the same as the whole model's.
    shape = replace(layout.shape, name="", layers=0)
    # Nor is ZeRO-2's another than ZeRO-1's: what it scatters besides is a part of its own.
    sharding = 1 if layout.sharding == 2 else layout.sharding
    layer = (
        *(stack, layout.machine.gpu, shape, layout.tp, layout.ep, layout.micro_batch),
        *(layout.sequence_length, sharding, layout.recomputation, layout.overlap),
        layout.compiled,
    )
    groups: dict[str, Hashable] = {
        "stack": (*stack, layout.machine.gpu),
        "release": stack,
        "layer": layer,
        "stage": (layer, *rank_of(layout)),
        "series": (platform, layer, layout.pp),
        "host": host or ("another", platform),
    }
    # Nothing that one GPU does crosses a fabric.
    if layout.gpus > 1:
        groups["fabric"] = (stack, platform, layer, layout.pp, layout.virtual_stages)
        groups["exchange"] = stack
    if not layout.compiled:
        groups["uncompiled"] = stack
    if layout.shape.experts:
        groups["experts"] = stack
    if layout.gpus > layout.machine.gpus_per_node:
        groups["site"] = platform
    of_parts = seconds(layout) | (timed_terms.measured(layout, rates) if rates else {})
    return hierarchical_fit.Row(
        seconds=of_parts, groups=groups, kind=kind(layout), doublings=doublings(layout)
    )


def rank_of(layout: Layout) -> tuple[int, int]:
    """How many layers and chunks the fullest pipeline rank has."""
    return max(layout.layers_of_ranks), layout.virtual_stages
