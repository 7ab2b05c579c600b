"""docs/results/projection.md: own runs beside what is projected of them, from fewer GPUs and from
other layouts; both with times of exchanges measured alone, and without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from research.pages.parts import percent
from research.pages.tables import NOTICE, document, table
from research.projection import calibration
from research.projection.metrics import Errors
from research.projection.own_validation import JudgedRun, OwnValidation, validate_own
from workflow_lib.projection.own_runs import read_own
from workflow_lib.projection.own_stack import Residual, own_stack
from workflow_lib.words import counted

NAME = "projection.md"
#: those of the evidence are on one and on two GPUs
_FIT_GPUS = 1

_TOP = (
    NOTICE,
    "# How far are projections from our own runs?",
    "[Projection](../explanation/projection.md) explains the model. This page projects runs that "
    "were measured, from others. No projected run is fitted. *With* means that exchanges and the "
    "optimiser take [times measured alone on two H200](engine-parts-two-h200-2026-11-24.md), and "
    "*without* that they take rates fitted to published runs of NVIDIA's stack.",
)

_KINDS = (
    "Published rows by [kind of question](../explanation/projection.md#intervals): how many lie in "
    "the interval that the other groups of their kind give. Ranges of shares are 95 % intervals of "
    "Clopper and Pearson, as if no two rows were alike. Ends are in standard deviations of the fit "
    "below and above the median."
)


def page(_: Path) -> str:
    """The page of the runs that are shipped."""
    runs = read_own()
    few = [validate_own(runs, _FIT_GPUS, times) for times in ((), None)]
    layouts = [own_stack(runs, times).residuals for times in ((), None)]
    return page_of(*few, *layouts)


def page_of(
    without: OwnValidation,
    measured: OwnValidation,
    without_of: Sequence[Residual],
    measured_of: Sequence[Residual],
) -> str:
    """The page of two validations, and of the residuals of all cells in the same order."""
    rows = [
        (
            *(f"`{before.run.cell}`", str(before.run.layout.gpus)),
            *(f"{before.time.measured:.3f}", percent(before.time.error), percent(after.time.error)),
            *(_energy(before), _energy(after)),
        )
        for before, after in zip(without.judged, measured.judged, strict=True)
    ]
    rows += _sums(3, *_errors(without, measured))
    others = [
        (
            *(f"`{before.run.cell}`", f"{before.run.step_time_s:.3f}"),
            *(percent(before.error), percent(after.error)),
        )
        for before, after in zip(without_of, measured_of, strict=True)
    ]
    others += _sums(2, *([each.error for each in of] for of in (without_of, measured_of)))
    inside = sum(each.time.is_within(0.9) for each in measured.judged)
    fits = Counter(each.fits for each in measured.judged)
    goal = measured.goal
    heads = ("error of time, without", "with", "error of energy, without", "with")
    return document(
        *_TOP,
        "## From one GPU to two",
        f"{counted(measured.fitted, 'cell')} on {counted(measured.fit_gpus_at_most, 'GPU')}, and "
        f"published runs, project {counted(len(measured.judged), 'cell')} on more. A row is a "
        "cell: the median over its runs, and the error of what is projected.",
        table(("cell", "GPUs", "measured, s a step", *heads), rows),
        f"With these times, 90 % intervals hold {inside} of {len(measured.judged)} times, "
        f"and of the {len(measured.judged)}, which all ran, {fits['yes']} fit by the estimate of "
        f"memory, {fits['perhaps']} perhaps do and {fits['no']} do not. The goal, of four GPUs "
        f"from one and two, is {100 * goal['mape']:g} % of time and "
        f"{100 * goal['energy_mape']:g} % of energy.",
        "## Each cell from those of other layouts",
        table(("cell", "measured, s a step", "error, without", "with"), others),
        "## What intervals hold of groups that were left out",
        _KINDS,
        calibration.describe(),
    )


def _sums(columns: int, *of_columns: Sequence[float]) -> Iterator[tuple[str, ...]]:
    """The last rows of a table, which sum up errors behind so many columns of other things."""
    sums = [Errors.of(errors) if errors else None for errors in of_columns]
    for name, of in (("mean of all", "mape"), ("largest", "maximum")):
        told = (percent(getattr(each, of), sign="") if each else "–" for each in sums)
        yield (name, *[""] * (columns - 1), *told)


def _errors(*validations: OwnValidation) -> list[list[float]]:
    """Those of time in each validation, then those of energy; none where no run has its power."""
    times = [[each.time.error for each in done.judged] for done in validations]
    energies = [[each.energy.error for each in done.judged if each.energy] for done in validations]
    return [*times, *energies]


def _energy(judged: JudgedRun) -> str:
    return percent(judged.energy.error) if judged.energy else "–"
