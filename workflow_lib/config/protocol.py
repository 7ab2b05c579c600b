"""How each run of a sweep is measured."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from workflow_lib.config.fields import Strict
from workflow_lib.records import axes, bounds

#: the range of rates that the sampler can keep
SLOWEST_HZ, FASTEST_HZ = 1.0, 50.0
#: a shorter block would hold too few steps and too few readings of power
SHORTEST_BLOCK_S = 5.0
#: no part of a run takes a year
LONGEST_S = 3.2e7

Steps = Annotated[int, Field(ge=1, le=bounds.STEPS.most)]


def _rate(rate_hz: float) -> float:
    if not SLOWEST_HZ <= rate_hz <= FASTEST_HZ:
        raise ValueError(
            f"{rate_hz:g} Hz cannot be sampled at; use {SLOWEST_HZ:g} to {FASTEST_HZ:g} Hz"
        )
    return rate_hz


def _rate_or_none(rate_hz: float) -> float:
    """Check one of several alternating rates. At rate 0 nothing is read."""
    return rate_hz if rate_hz == 0 else _rate(rate_hz)


_BOUNDS = {"minimum": SLOWEST_HZ, "maximum": FASTEST_HZ}
Rate = Annotated[float, AfterValidator(_rate), Field(json_schema_extra=_BOUNDS)]
RateOrNone = Annotated[float, AfterValidator(_rate_or_none)]


class CoolDown(Strict):
    """A wait for cool GPUs between a job's start and its idle baseline."""

    within_c: Annotated[float, Field(gt=0, le=1000)]
    """How far above the platform's idle_temperature_c the hottest GPU may be, °C."""
    limit_s: Annotated[float, Field(gt=0, le=LONGEST_S)]
    """The longest wait, s. The run then starts anyway, and records that its GPUs were warmer."""


class Protocol(Strict):
    """How each run of a sweep is measured."""

    warmup_steps: Steps
    """Steps before measuring starts."""
    measured_steps: Steps
    """Steps that are measured."""
    idle_baseline_s: Annotated[float, Field(ge=0, le=LONGEST_S)]
    """How long idle GPUs are sampled before training starts, s."""
    sample_rate_hz: Rate | None = None
    """Rate of GPU samples; required unless interleaved_rates_hz is given."""
    interleaved_rates_hz: tuple[RateOrNone, ...] = Field(default=(), strict=False)
    """For measuring the cost of sampling: 2 to 8 rates that alternate within each run, block by
    block. One must be 0 (nothing is read), the others 1 to 50. Such runs have no energy."""
    block_s: Annotated[float, Field(ge=SHORTEST_BLOCK_S, le=LONGEST_S)] | None = None
    """Length of a sampling block, which has one rate, s; required with interleaved_rates_hz."""
    cool_down: CoolDown | None = None
    """Wait for cool GPUs before the idle baseline; null does not wait."""
    profiled_steps: Annotated[int, Field(ge=0, le=bounds.STEPS.most)] = 0
    """Steps of the profiled run, after its warm-up. Each cell then has one more run, besides the
    measured ones, which leaves a Kineto trace for each rank. 0 means no profiled run. It is not
    part of the cell."""

    def fields_of(self, record: type) -> dict[str, Any]:
        """What is given for the fields that a record of a cell has by the same name; a key of
        cool_down has its name behind it, as in ``cool_down_limit_s``.
        """
        given = {
            **dict(self),
            **{f"cool_down_{name}": value for name, value in self.cool_down or ()},
        }
        names = {field.name for field in axes.fields(record)} & given.keys()
        return {name: given[name] for name in names if given[name] is not None}

    @model_validator(mode="after")
    def _one_rate_or_several(self) -> Protocol:
        rates = self.interleaved_rates_hz
        if bool(rates) == (self.sample_rate_hz is not None):
            raise ValueError("give either sample_rate_hz or interleaved_rates_hz")
        if bool(rates) != (self.block_s is not None):
            raise ValueError(
                "interleaved_rates_hz needs block_s, how long each rate is kept"
                if rates
                else "block_s is only for interleaved_rates_hz; leave it out"
            )
        if rates and (not 2 <= len(rates) <= 8 or len(set(rates)) < len(rates) or 0 not in rates):
            raise ValueError(
                f"interleaved_rates_hz is {[*rates]}, expected 2 to 8 different rates with 0 among "
                "them, against which the others are compared"
            )
        return self

    @model_validator(mode="after")
    def _profiles_a_part(self) -> Protocol:
        if self.profiled_steps > self.measured_steps:
            raise ValueError(
                f"profiled_steps is {self.profiled_steps}, more than measured_steps "
                f"{self.measured_steps}; 2 tell a step from another, and traces are large"
            )
        return self
