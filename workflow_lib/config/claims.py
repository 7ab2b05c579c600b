"""``config/claims.yaml``: claims, and the rules that give them verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool, StrictFloat, StrictInt, model_validator

from workflow_lib.config.fields import Strict, Text
from workflow_lib.config.sweeps import values
from workflow_lib.records import bounds, cell_axes
from workflow_lib.records.measures import MEASURES, PROFILED

ClaimId = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9-]{0,15}$")]
Scalar = StrictBool | StrictInt | StrictFloat | Text
#: column of an axis of cells → the values that are selected
Cells = Mapping[str, Scalar | Annotated[tuple[Scalar, ...], Field(strict=False)]]
Number = Annotated[float, Field(ge=-bounds.QUANTITY.most, le=bounds.QUANTITY.most)]
#: groups of a run's GPUs, by airflow or by their mean temperature
GpuGroup = Literal["front", "rear", "hottest", "coolest"]

#: a column of overhead.parquet, the only measure that needs a sampling rate
SLOWDOWN = "slowdown"
#: sensors whose readings can be compared between two GPUs. Power cannot: each GPU's sensor has a
#: gain error of its own
_OF_GPUS = ("temperature", "clock", "events")
#: columns that filters may name besides axes → their type
_COUNTS: Mapping[str, type] = {"gpus": int}
#: axes whose value is a list → the type of its items
_LISTS: Mapping[str, type] = {
    "stage_layers": int,
    "gpu_order": int,
    "gpu_uuids": str,
    "power_limits_w": int,
    "clock_limits_mhz": int,
}
#: axes with a number, and the number of cells that set none
_UNSET: Mapping[str, float] = {"cool_down_limit_s": 0.0}
#: of such axes: any value, if the cell sets one
ANY = "any"


class ClaimTest(Strict):
    """A rule: the cells that are contrasted, the measure, and the bounds of its interval.

    With `first` and `second`, the rule contrasts two cells: by their ratio, or by their difference
    for temperatures and shares of time. With `pair` and `beside`, it sets the contrast of one pair
    of cells beside that of another: by the ratio of two ratios, or the difference of two
    differences. With `gpus`, it contrasts two groups of GPUs within each run. With neither, it
    tests the measure itself.
    """

    part: Text | None = None
    """The part of the claim that is tested; null for the whole claim."""
    measure: Text
    """A column of runs.parquet; a column of cells.parquet that comes from profiled runs; or
    slowdown, the cost of sampling. A cell has one profiled run, so that an interval needs three
    cells that differ in their `seed` alone."""
    cells: Cells = Field(default={})
    """Values of axes that all cells have, such as `{workload: pretrain, tp: [2, 4, 8]}`. With a
    list, a cell may have any of its values. For `stage_layers`, `gpu_order`, `gpu_uuids`,
    `power_limits_w` and `clock_limits_mhz` the list is the value itself, `[]` means cells that set
    none, and `any` means cells that set one, whichever. For `cool_down_limit_s` 0 means cells
    without a cool-down, and `any` those with one."""
    first: Cells = Field(default={})
    """Values of axes that the first cell has."""
    second: Cells = Field(default={})
    """Values of axes that the second cell has. Both cells are alike in every other axis."""
    alike_but: tuple[Text, ...] = Field(default=(), strict=False)
    """Other axes in which the two cells may differ."""
    pair: Cells = Field(default={})
    """With beside: values of axes that both cells of the first pair have, such as `{model:
    llama3-8b-8-layers}`."""
    beside: Cells = Field(default={})
    """With pair: values of the same axes that both cells of the second pair have. The first cells
    of both pairs are alike in every other axis, and so are the second cells. They may differ in
    what follows from those axes: from a model its dimensions and the numbers of steps. They may
    differ, too, where first, second or cells say `any`."""
    choose: Literal["each", "best"] = "each"
    """each: every pair of cells that are alike; best: the best of all first cells and the best of
    all second cells by the measure, whatever their layouts and options."""
    gpus: tuple[GpuGroup, ...] = Field(default=(), strict=False, max_length=2)
    """Two groups of GPUs of each run: by airflow, or the hottest and the coolest GPU."""
    busy_above: Annotated[float, Field(gt=0, lt=1)] | None = None
    """With first and second: the share of time above which the GPUs of both cells must run kernels,
    as `gpu_utilisation_share` says. Idle GPUs wait for the host, which then sets the speed."""
    sample_rate_hz: Annotated[float, Field(gt=0, le=1000)] | None = None
    """With slowdown: the sampling rate."""
    above: Number | None = None
    """The claim says that the contrast is above this: a ratio (1 is no difference), or an amount in
    the measure's unit."""
    below: Number | None = None
    """The claim says that the contrast is below this."""
    holds_in: Literal["all", "most", "any"] = "all"
    """Whether the claim must hold for all such contrasts, for more than half of them, or for at
    least one."""

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
        if not self.first and (self.alike_but or self.choose != "each" or self.busy_above):
            raise ValueError(
                "alike_but, choose and busy_above mean nothing without first and second"
            )
        for which in (self.cells, self.first, self.second, self.pair, self.beside):
            _check_axes(which)
        for name in self.alike_but:
            _check_axis(name)
        self._check_pairs()
        self._check_measure()
        return self

    def _check_pairs(self) -> None:
        """Two pairs have no cell in common, and what tells them apart tells no cells of one."""
        if not self.pair and not self.beside:
            return
        if not self.first or self.choose != "each":
            raise ValueError(
                "pair and beside mean nothing without first and second, nor with choose: best"
            )
        if self.pair.keys() != self.beside.keys():
            raise ValueError("pair and beside go together, and name the same axes")
        named = {*self.cells, *self.first, *self.second, *self.alike_but}
        if twice := sorted(named & self.pair.keys()):
            raise ValueError(
                f"{twice[0]} tells the pairs apart: not in cells, first, second or alike_but"
            )
        if all(_overlap(name, wanted, self.beside[name]) for name, wanted in self.pair.items()):
            raise ValueError("a cell could be in both pairs: pair and beside exclude no value")

    def _check_measure(self) -> None:
        if (self.measure == SLOWDOWN) != (self.sample_rate_hz is not None):
            raise ValueError("measure slowdown and sample_rate_hz go together")
        if self.sample_rate_hz is not None:
            if self.first or self.gpus:
                raise ValueError("slowdown contrasts rates within a run: without first and gpus")
            return
        measure = MEASURES.get(self.measure)
        if self.first and (measure is None or measure.contrast is None):
            valid = [name for name, of_runs in MEASURES.items() if of_runs.contrast]
            raise ValueError(f"{self.measure!r} contrasts no cells; valid: {', '.join(valid)}")
        if self.gpus:
            fit = [
                name
                for name, of_gpus in MEASURES.items()
                if of_gpus.level == "gpu" and of_gpus.sensor in _OF_GPUS
            ]
            if self.measure not in fit:
                raise ValueError(f"{self.measure!r} contrasts no GPUs; valid: {', '.join(fit)}")
            by_heat = {"hottest", "coolest"} & {*self.gpus}
            if by_heat and measure and measure.sensor == "temperature":
                raise ValueError("the hottest GPU is hotter by choice: nothing is left to test")
        if not self.first and not self.gpus:
            if measure is None and self.measure not in PROFILED:
                raise ValueError(f"{self.measure!r} is not a measure of a run or of a profiled run")
            if measure is not None and measure.gain:
                raise ValueError(
                    f"{self.measure!r} rests on sensors of power, whose own error is unknown: "
                    "contrast two cells instead"
                )


def _check_axes(which: Mapping[str, Any]) -> None:
    for name, wanted in which.items():
        kind = _check_axis(name)
        if name in _LISTS:
            if wanted == ANY:
                continue
            if not isinstance(wanted, tuple):
                raise ValueError(
                    f"{name} is {wanted!r}, expected a list of {kind.__name__}, or {ANY}"
                )
        elif name in _UNSET and wanted == ANY:
            continue
        elif wanted == ():
            raise ValueError(f"{name} is an empty list, which no cell has")
        for value in values(wanted):
            if type(value) is not kind and not (kind is float and type(value) is int):
                ending = f", or {ANY}" if name in _UNSET and value is wanted else ""
                raise ValueError(f"{name} is {value!r}, expected {kind.__name__}{ending}")


def _check_axis(name: str) -> type:
    """The type of an axis. Raises ValueError, which names the valid axes."""
    if name in _COUNTS:
        return _COUNTS[name]
    if name in _LISTS:
        return _LISTS[name]
    axis = cell_axes.AXES.get(name)
    if axis is None or axis.field.is_nested:
        valid = [
            name
            for name, axis in cell_axes.AXES.items()
            if name in _LISTS or not axis.field.is_nested
        ]
        raise ValueError(
            f"{name!r} is not an axis of cells; valid: {', '.join([*valid, *_COUNTS])}"
        )
    return axis.field.type


def held_in_tables(name: str, wanted: Any) -> tuple[Any, ...]:
    """The values of an axis that a filter selects, as tables hold them."""
    if name in _LISTS:
        return (ANY if wanted == ANY else cell_axes.AXES[name].stored(wanted),)
    return values(wanted)


def selects(name: str, wanted: Any, value: Any) -> bool:
    """Whether a filter of an axis selects a cell that has this value in tables."""
    if _is_any(name, wanted):
        return value not in (None, _UNSET.get(name))
    return value in held_in_tables(name, wanted)


def _overlap(name: str, one: Any, other: Any) -> bool:
    """Whether two filters of an axis select a value in common."""
    return any(
        selects(name, a, value)
        for a, b in ((one, other), (other, one))
        for value in held_in_tables(name, b)
    )


def left_open(*wanted: Mapping[str, Any]) -> set[str]:
    """The axes of which filters select any value that is set, and the details of these."""
    named = {name for axes in wanted for name, value in axes.items() if _is_any(name, value)}
    return named | {
        name for name, axis in cell_axes.AXES.items() if axis.field.axis.detail_of in named
    }


def _is_any(name: str, wanted: Any) -> bool:
    """Whether a filter of an axis selects any value that is set."""
    return wanted == ANY and (name in _LISTS or name in _UNSET)


class Claim(Strict):
    """A sentence with a rule that gives it a verdict."""

    id: ClaimId
    """Capital letters and digits: C8."""
    by: Literal["study", "triptych", "reviewers"]
    """Who makes the claim, or asks for it."""
    says: Text
    """The claim, in words."""
    section: Text | None = None
    """The section of the study that makes the claim."""
    needs: Text
    """The hardware that a test of the whole claim needs."""
    would_test: Text
    """What would test it: a sweep, or something that no sweep has yet."""
    tests: tuple[ClaimTest, ...] = Field(default=(), strict=False, max_length=16)
    """The rules. The claim holds if all of them do."""
    no_rule: Text | None = None
    """Why there is no rule; only without tests."""
    nearest: tuple[ClaimId, ...] = Field(default=(), strict=False, max_length=16)
    """Claims with rules that ask nearly the same of fewer GPUs. They do not judge this one."""

    @model_validator(mode="after")
    def _agrees(self) -> Claim:
        if bool(self.tests) == (self.no_rule is not None):
            raise ValueError("a claim has tests, or no_rule says why it has none")
        return self


class Ledger(Strict):
    """``config/claims.yaml``: claims, and the rules by which they are judged."""

    description: Text
    """One line on who makes these claims."""
    claims: tuple[Claim, ...] = Field(strict=False, min_length=1, max_length=1000)
    """The claims, in the order of the page."""

    @model_validator(mode="after")
    def _agrees(self) -> Ledger:
        ids = [claim.id for claim in self.claims]
        if twice := sorted({id_ for id_ in ids if ids.count(id_) > 1}):
            raise ValueError(f"two claims are called {twice[0]}")
        with_rules = {claim.id for claim in self.claims if claim.tests}
        for claim in self.claims:
            if others := sorted({*claim.nearest} - (with_rules - {claim.id})):
                raise ValueError(f"nearest of {claim.id}: {others[0]} is no other claim with tests")
        return self
