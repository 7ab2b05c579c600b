"""``config/claims.yaml``: the ledger, what is claimed and the rule that gives it a verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from workflow_lib.config.fields import Strict, Text
from workflow_lib.config.sweeps import values
from workflow_lib.records import MEASURES, bounds, cell_axes
from workflow_lib.records.measures import PROFILED

ClaimId = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9-]{0,15}$")]
Scalar = StrictBool | StrictInt | StrictFloat | Text
#: axes of cells, by the names of their columns, and the values that are meant
Cells = Mapping[str, Scalar | Annotated[tuple[Scalar, ...], Field(strict=False)]]
Number = Annotated[float, Field(ge=-bounds.QUANTITY.most, le=bounds.QUANTITY.most)]
#: GPUs of a run, by where they sit in the air stream or by their mean temperature
GpuGroup = Literal["front", "rear", "hottest", "coolest"]

#: of overhead.parquet, the only measure that is asked for with a sampling rate
SLOWDOWN = "slowdown"
#: what one GPU's readings are trusted for beside another's: each has a gain error of power alone
_OF_GPUS = ("temperature", "clock", "events")
#: columns that filters may name besides axes
_COUNTS: Mapping[str, type] = {"gpus": int}
#: axes of which a list is one value, and what it is a list of
_LISTS: Mapping[str, type] = {
    "stage_layers": int,
    "gpu_order": int,
    "gpu_uuids": str,
    "power_limits_w": int,
    "clock_limits_mhz": int,
}


class ClaimTest(Strict):
    """A rule: which cells are contrasted by which measure, and where its interval has to lie.

    With `first` and `second` it is a contrast of two cells: their ratio, or for temperatures and
    shares of time their difference. With `gpus` it is one of two groups of GPUs within each run.
    With neither, it is the measure itself.
    """

    part: Text | None = None
    """What of the claim it tests; null where that is all of it."""
    measure: Text
    """A column of runs.parquet; of cells.parquet, for what a profiled run tells; or slowdown, for
    what sampling costs."""
    cells: Cells = Field(default={})
    """Values of axes that all cells have, such as `{workload: pretrain, tp: [2, 4, 8]}`. A list is
    of values of which a cell has any. In `stage_layers`, `gpu_order`, `gpu_uuids`,
    `power_limits_w` and `clock_limits_mhz` it is one value for the whole, and `[]` is a cell that
    sets none."""
    first: Cells = Field(default={})
    """Values of axes that the first cell has."""
    second: Cells = Field(default={})
    """Values of axes that the second cell has. Both cells are alike in every other axis."""
    alike_but: tuple[Text, ...] = Field(default=(), strict=False)
    """Other axes in which the two cells may differ."""
    choose: Literal["each", "best"] = "each"
    """each: every pair of cells that are alike; best: of all first and of all second cells the best
    by the measure, whatever their layouts and options."""
    gpus: tuple[GpuGroup, ...] = Field(default=(), strict=False, max_length=2)
    """Two groups of GPUs of each run: by airflow, or the hottest and the coolest GPU."""
    sample_rate_hz: Annotated[float, Field(gt=0, le=1000)] | None = None
    """With slowdown: the sampling rate."""
    above: Number | None = None
    """The claim says that the contrast is above this: a ratio (1 is no difference), or an amount in
    the measure's unit."""
    below: Number | None = None
    """The claim says that the contrast is below this."""
    holds_in: Literal["all", "any"] = "all"
    """Whether the claim is of all such cells, or says that there are some."""

    @model_validator(mode="after")
    def _agrees(self) -> ClaimTest:
        if self.above is None and self.below is None:
            raise ValueError("needs above, below or both: where the interval has to lie")
        if self.above is not None and self.below is not None and self.above >= self.below:
            raise ValueError(f"nothing lies above {self.above:g} and below {self.below:g}")
        if bool(self.first) != bool(self.second):
            raise ValueError("first and second go together")
        if self.gpus and (self.first or len({*self.gpus}) != 2):
            raise ValueError("gpus are two groups within a run: without first and second")
        if not self.first and (self.alike_but or self.choose != "each"):
            raise ValueError("alike_but and choose mean nothing without first and second")
        for which in (self.cells, self.first, self.second):
            _check_axes(which)
        for name in self.alike_but:
            _check_axis(name)
        self._check_measure()
        return self

    def _check_measure(self) -> None:
        if (self.measure == SLOWDOWN) != (self.sample_rate_hz is not None):
            raise ValueError("measure slowdown and sample_rate_hz go together")
        if self.sample_rate_hz is not None:
            if self.first or self.gpus:
                raise ValueError("slowdown contrasts rates within a run: without first and gpus")
            return
        known = MEASURES.get(self.measure)
        if self.first and (known is None or known.contrast is None):
            valid = [each.name for each in MEASURES.values() if each.contrast]
            raise ValueError(f"{self.measure!r} contrasts no cells; valid: {', '.join(valid)}")
        if self.gpus:
            fit = [
                each.name
                for each in MEASURES.values()
                if each.level == "gpu" and each.sensor in _OF_GPUS
            ]
            if self.measure not in fit:
                raise ValueError(f"{self.measure!r} contrasts no GPUs; valid: {', '.join(fit)}")
            if known and known.sensor == "temperature" and {"hottest", "coolest"} & {*self.gpus}:
                raise ValueError("the hottest GPU is hotter by choice: nothing is left to test")
        if not self.first and not self.gpus:
            if known is None and self.measure not in PROFILED:
                raise ValueError(f"{self.measure!r} is not a measure of a run or of a profiled run")
            if known is not None and known.gain:
                raise ValueError(
                    f"{self.measure!r} rests on sensors of power, whose own error is unknown: "
                    "contrast two cells instead"
                )


def _check_axes(which: Mapping[str, Any]) -> None:
    for name, wanted in which.items():
        kind = _check_axis(name)
        if name in _LISTS:
            if not isinstance(wanted, tuple):
                raise ValueError(f"{name} is {wanted!r}, expected a list of {kind.__name__}")
        elif wanted == ():
            raise ValueError(f"{name} is an empty list, which no cell has")
        for value in values(wanted):
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise ValueError(f"{name} is {value!r}, expected {kind.__name__}")


def _check_axis(name: str) -> type:
    """An axis's type. Raises ValueError, which names the valid ones."""
    if name in _COUNTS:
        return _COUNTS[name]
    if name in _LISTS:
        return _LISTS[name]
    axis = cell_axes.AXES.get(name)
    if axis is None or axis.field.is_nested:
        valid = [
            name
            for name, each in cell_axes.AXES.items()
            if name in _LISTS or not each.field.is_nested
        ]
        raise ValueError(
            f"{name!r} is not an axis of cells; valid: {', '.join([*valid, *_COUNTS])}"
        )
    return axis.field.type


def held_in_tables(name: str, wanted: Any) -> tuple[Any, ...]:
    """The values of an axis that a filter of a test means, as tables hold them."""
    if name in _LISTS:
        return (cell_axes.AXES[name].stored(wanted),)
    return values(wanted)


class Claim(Strict):
    """A sentence with a rule that gives it a verdict."""

    id: ClaimId
    """Capital letters and digits: C8."""
    by: Literal["study", "triptych", "reviewers"]
    """Who claims it, or asks."""
    says: Text
    """The claim, in words."""
    section: Text | None = None
    """Where the study has it."""
    needs: Text
    """The hardware that a test of the whole claim takes."""
    would_test: Text
    """What would test it: a sweep, or what no sweep has yet."""
    tests: tuple[ClaimTest, ...] = Field(default=(), strict=False, max_length=16)
    """The rules; the claim holds where all do."""
    no_rule: Text | None = None
    """Why there is no rule; only without tests."""

    @model_validator(mode="after")
    def _agrees(self) -> Claim:
        if bool(self.tests) == (self.no_rule is not None):
            raise ValueError("a claim has tests, or no_rule says why it has none")
        return self


class Ledger(Strict):
    """``config/claims.yaml``: what is claimed, and by which rule it is judged."""

    description: Text
    """One line on whose claims these are."""
    claims: tuple[Claim, ...] = Field(strict=False, min_length=1, max_length=1000)
    """The claims, in the order of the page."""

    @model_validator(mode="after")
    def _agrees(self) -> Ledger:
        ids = [claim.id for claim in self.claims]
        if twice := sorted({each for each in ids if ids.count(each) > 1}):
            raise ValueError(f"two claims are called {twice[0]}")
        return self
