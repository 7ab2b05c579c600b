"""Judges the projection of this workflow's own runs: those on more GPUs, from those on few.

The rules are those of the split "own" in ``data/splits.toml``. No judged run is fitted, neither its
time nor its power.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from research.projection.layouts import fits
from research.projection.metrics import Coverage, Errors, Quantity
from research.projection.splits import read_splits
from workflow_lib.memory import Fit
from workflow_lib.projection.gpu_power import gpu_power, levels
from workflow_lib.projection.kinds import LEVELS
from workflow_lib.projection.own_runs import OwnRun
from workflow_lib.projection.own_stack import OwnStack, own_stack
from workflow_lib.projection.part_times import PartTime
from workflow_lib.records.reading import RecordError
from workflow_lib.words import counted


@dataclass(frozen=True)
class JudgedRun:
    """A run that was predicted from runs on fewer GPUs."""

    run: OwnRun
    time: Quantity
    #: of a step, by the GPUs' sensors; None if the run has no power
    energy: Quantity | None
    #: whether its memory was predicted to be enough, as it was
    fits: Fit


@dataclass(frozen=True)
class OwnValidation:
    """Runs that were judged, and from what."""

    fitted: int
    fit_gpus_at_most: int
    judged: tuple[JudgedRun, ...]
    goal: dict[str, float]


def validate_own(
    runs: Sequence[OwnRun],
    fit_gpus_at_most: int | None = None,
    times: Sequence[PartTime] | None = None,
) -> OwnValidation:
    """Predict runs from those on at most so many GPUs. Judged are those on more, or without
    ``fit_gpus_at_most`` those on the number of GPUs that the split says. ``times`` are of parts
    alone, by default those of the shipped evidence: they are of no run.

    Raises RecordError if there are none to fit or to judge, or if the fitted ones do not agree.
    """
    rules = next(split.rules for split in read_splits()[0] if split.kind == "own")
    most = fit_gpus_at_most or rules["fit_gpus_at_most"]
    fitted = [run for run in runs if run.layout.gpus <= most]
    if fit_gpus_at_most:
        asked, judged = f"on more than {most} GPUs", [r for r in runs if r.layout.gpus > most]
    else:
        tested = rules["test_gpus"]
        asked, judged = f"on {tested} GPUs", [r for r in runs if r.layout.gpus == tested]
    for found, where in ((fitted, f"on at most {counted(most, 'GPU')}"), (judged, asked)):
        if not found:
            raise RecordError(
                f"of {counted(len(runs), 'cell')} none is {where}: measure some, or choose others "
                "with --fit-gpus"
            )
    stack = own_stack(fitted, times)
    stack.check()
    return OwnValidation(len(fitted), most, tuple(_judged(judged, stack)), rules["goal"])


def _judged(judged: Sequence[OwnRun], stack: OwnStack) -> list[JudgedRun]:
    found = []
    for run in judged:
        layout = run.layout
        (time,) = stack.predict([layout], run.platform)
        power = gpu_power(layout, time, levels(stack.runs, layout.machine.gpu, shipped=()))
        widths = stack.widths_of(layout, time)
        of_time = Quantity(run.step_time_s, time.median_s, time.sd, widths)
        energy = None
        if run.power_per_gpu_w:
            energy = Quantity(
                run.power_per_gpu_w * layout.gpus * run.step_time_s,
                power.power_w * layout.gpus * time.median_s,
                math.hypot(time.sd, power.sd_w / power.power_w),
                widths,
            )
        found.append(JudgedRun(run, of_time, energy, fits(layout)))
    return found


def describe(done: OwnValidation) -> str:
    """The errors and the coverage of intervals as text, and each run."""
    rows = [
        {
            "cell": each.run.cell,
            "GPUs": each.run.layout.gpus,
            "s/step": f"{each.time.measured:.3f}",
            "predicted, 90 %": _shown(each.time),
            "error": f"{each.time.error:+.1%}",
            "error of energy": f"{each.energy.error:+.1%}" if each.energy else "–",
            "fits": f"{each.fits}, and ran",
        }
        for each in done.judged
    ]
    times = [each.time for each in done.judged]
    energies = [each.energy for each in done.judged if each.energy]
    sums = [_summed("step time", times, done.goal["mape"])]
    if energies:
        sums.append(_summed("energy of the GPUs", energies, done.goal["energy_mape"]))
    fits = Counter(each.fits for each in done.judged)
    of_fit = f"{counted(done.fitted, 'cell')} on at most {counted(done.fit_gpus_at_most, 'GPU')}"
    return "\n\n".join(
        [
            f"Fitted to {of_fit}, and to published runs; "
            f"{counted(len(done.judged), 'cell')} judged.",
            tabulate(sums, headers="keys", disable_numparse=True),
            tabulate(rows, headers="keys", disable_numparse=True),
            f"Memory: all ran; by the estimate {fits['yes']} fit, {fits['perhaps']} perhaps do, "
            f"and {fits['no']} do not.",
        ]
    )


def _shown(quantity: Quantity) -> str:
    low, high = quantity.interval(0.9)
    return f"{quantity.median:.3f} ({low:.3f} to {high:.3f})"


def _summed(name: str, quantities: Sequence[Quantity], goal: float) -> dict[str, Any]:
    errors = Errors.of([quantity.error for quantity in quantities])
    covers = {
        f"{level * 100:.0f} % covers (mean width)": Coverage.of(quantities, level)
        for level in LEVELS
    }
    return {
        "": name,
        "cells": errors.rows,
        "MAPE": f"{errors.mape:.2%}",
        "max": f"{errors.maximum:.2%}",
        "median": f"{errors.signed_median:+.2%}",
        **{title: f"{cover.covered:.0%} ({cover.width:.0%})" for title, cover in covers.items()},
        "goal": f"{goal:.0%}: {'reached' if errors.mape <= goal else 'not reached'}",
    }
