"""By how much readings of power are off where a load is in step with the sensor.

A sensor that looks for a moment every 20 ms sees one state of a load whose period is 20 ms, and as
many states of others as their period has in common with 20 ms. So each wave here is a little longer
than such a period: while it lasts, every phase passes under the looks once, and what a reading says
in a stretch of it is off from its mean over the wave as it would be in a run of any length that
stays in that phase.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from research.measuring.load import Wave
from research.measuring.readings import ENERGY, MOMENTARY, POWER, SAMPLES, Change

Array = NDArray[np.float64]
#: of Hopper's sensor (workflow_lib/gpu_models.py)
LOOKS_S = 0.02
#: of the turn through all phases, and of the wave before it, so that a reading is of the turn alone
TURN_S, LEAD_S = 13.0, 1.5
#: a wave's period over the looks'
_IN_STEP = (
    *("1/10", "1/8", "1/5", "1/4", "1/3", "2/5", "1/2", "2/3", "3/4", "1", "5/4", "3/2", "2"),
    *("5/2", "3", "4", "5", "10", "20"),
)
OUT_OF_STEP_S = (0.0173, 0.0231, 0.0431, 0.0971)
#: of these periods over the looks' other duties are tried, too
_OF_OTHER_DUTY, _DUTIES = ("1", "5"), (0.25, 0.75)
#: about as long as a reading of Hopper's is a mean over
_STRETCH_S = 1.0
#: lengths of time over which energies are taken
LENGTHS_S = (0.2, 0.5, 1.0, 2.0, 5.0)


def in_step(ratio: Fraction, duty: float = 0.5) -> Wave:
    """A wave that is in step with the looks but for one turn through all their phases."""
    period_s = LOOKS_S * float(ratio)
    # Looks see the wave at phases that are 20 ms / n apart, where the ratio is m/n.
    period_s *= 1 + LOOKS_S / ratio.denominator / TURN_S
    return _lasting(period_s, duty)


def _lasting(period_s: float, duty: float = 0.5) -> Wave:
    return Wave(period_s, round((LEAD_S + TURN_S) / period_s), duty)


#: sees each look at the same state, so that all of them see the waveform
IN_STEP = in_step(Fraction(1))
#: first a steady load, which brings clocks up and shows the noise
STEADY = Wave(8.0, 1, 1.0)
WAVES = (
    *(in_step(Fraction(ratio)) for ratio in _IN_STEP),
    *(in_step(Fraction(ratio), duty) for ratio in _OF_OTHER_DUTY for duty in _DUTIES),
    *map(_lasting, OUT_OF_STEP_S),
)
#: as many as take less than two minutes, each time after a steady load; what was seen of some is
#: kept before others begin
TURNS = tuple((STEADY, *WAVES[first : first + 7]) for first in range(0, len(WAVES), 7))

#: a period over the looks', periods out of step on both sides of it, and duties: what a wave in
#: step reads beside the other two is its error
_BRACKETS = (("5", (0.0871, 0.1133), (0.25, 0.5, 0.75)), ("1", (0.0173, 0.0231), (0.25, 0.5)))
_WARMING = Wave(4.0, 1, 1.0)
#: each there and back, so that a steady drift cancels
COUNTER_TURNS = tuple(
    (_WARMING, *waves, *reversed(waves))
    for ratio, (below, above), duties in _BRACKETS
    for duty in duties
    for waves in [(_lasting(below, duty), in_step(Fraction(ratio), duty), _lasting(above, duty))]
)


@dataclass(frozen=True)
class Errors:
    """Shares by which a reading is off in stretches of a second: their mean, and the ends of the
    middle 95 % of them.
    """

    mean: float
    low: float
    high: float
    stretches: int


@dataclass(frozen=True)
class Look:
    """How a sensor's momentary looks see the edges of a load, in seconds."""

    #: of one look, if the load's own edges take no time
    length_s: float
    #: from an edge of the load until half of it is seen, but for whole periods
    delay_s: float
    low_w: float
    high_w: float
    r2: float


@dataclass(frozen=True)
class Bracket:
    """What readings say of a wave in step, beside waves out of step on both sides of it."""

    wave: Wave
    #: of the waves out of step, by the counter
    mean_w: float
    #: reading → how far its seconds are off the mean of the waves out of step: in both waves in
    #: step, and in all out of step
    in_step: Mapping[str, tuple[Errors, Errors]]
    apart: Mapping[str, Errors]


@dataclass(frozen=True)
class MapRow:
    """What readings say of a wave."""

    wave: Wave
    errors: Mapping[str, Errors]
    #: length of time in s → as :func:`scatter_by_length`
    by_length: Mapping[float, float]


def map_rows(
    waves: Sequence[Wave], changes: Mapping[str, Sequence[Change]], began_unix_s: float
) -> Iterator[MapRow]:
    """A row for each of these waves, which follow one another from ``began_unix_s``. ``changes``
    has those of each reading, and of the energy counter. Raises ValueError where they are too few.
    """
    end_s = began_unix_s
    for wave in waves:
        end_s += wave.duration_s
        span = end_s - min(TURN_S, wave.duration_s - LEAD_S), end_s
        off = {name: errors(name, seen, changes[ENERGY], *span) for name, seen in changes.items()}
        yield MapRow(wave, off, scatter_by_length(changes[ENERGY], *span))


def errors(
    name: str, changes: Sequence[Change], counter: Sequence[Change], begin_s: float, end_s: float
) -> Errors:
    """How far a reading is off the energy counter, in the stretches of a second before each change
    of the counter. A load's own power moves within seconds, and the counter is what sees most of
    it. Of the counter itself: how far its stretches are off their mean, for whatever reason.

    Raises ValueError for fewer than five stretches.
    """
    counted_w, read_w = _stretches(name, changes, counter, begin_s, end_s)
    return _spread(read_w / (counted_w.mean() if name == ENERGY else counted_w) - 1)


def _spread(shares: Array) -> Errors:
    low, high = np.quantile(shares, (0.025, 0.975))
    return Errors(float(shares.mean()), float(low), float(high), len(shares))


def _stretches(
    name: str, changes: Sequence[Change], counter: Sequence[Change], begin_s: float, end_s: float
) -> tuple[Array, Array]:
    """Mean powers by the counter and by a reading, in the stretches of a second before each change
    of the counter. Raises ValueError for fewer than five.
    """
    if name not in (POWER, ENERGY, SAMPLES, MOMENTARY):
        raise ValueError(f"{name}: not a reading of power or energy")
    moments, joules = np.array(counter).reshape(-1, 2).T
    ends = np.flatnonzero((moments > begin_s + _STRETCH_S) & (moments <= end_s))
    if len(ends) < 5:
        raise ValueError(f"{name}: {len(ends)} stretches of a second are too few")
    begins = np.abs(moments[None, :] - (moments[ends, None] - _STRETCH_S)).argmin(axis=1)
    counted_w = (joules[ends] - joules[begins]) / (moments[ends] - moments[begins])
    times, read_w = np.array(changes).reshape(-1, 2).T
    if name == ENERGY:
        return counted_w, counted_w
    if name == POWER:  # which is itself the mean over a second
        return counted_w, np.interp(moments[ends], times, read_w)
    sums_w = np.concatenate(([0.0], np.cumsum(read_w)))
    since, until = (np.searchsorted(times, moments[at], side="right") for at in (begins, ends))
    enough = until - since >= 3
    since, until = since[enough], until[enough]
    if len(until) < 5:
        raise ValueError(f"{name}: {len(until)} stretches of a second are too few")
    return counted_w[enough], (sums_w[until] - sums_w[since]) / (until - since)


def bracket(
    waves: Sequence[Wave], changes: Mapping[str, Sequence[Change]], began_unix_s: float
) -> Bracket:
    """What the counter and the samples say of the wave in step in one of ``COUNTER_TURNS``, beside
    the waves out of step around it, which have its power. Raises ValueError where they changed too
    rarely.
    """
    warming, *others = waves
    ends_s = began_unix_s + warming.duration_s + np.cumsum([wave.duration_s for wave in others])
    means_w, in_step, apart = {}, {}, {}
    for name, seen in changes.items():
        # There and back: the means of a wave and its repeat are of the same time for all three.
        of_waves = [
            _stretches(name, seen, changes[ENERGY], end_s - TURN_S, end_s)[1] for end_s in ends_s
        ]
        there, back = of_waves[1::3]
        others_w = [*of_waves[::3], *of_waves[2::3]]
        means_w[name] = watts = float(np.mean([each.mean() for each in others_w]))
        in_step[name] = _spread(there / watts - 1), _spread(back / watts - 1)
        apart[name] = _spread(np.concatenate(others_w) / watts - 1)
    return Bracket(others[1], means_w[ENERGY], in_step, apart)


def scatter_by_length(
    changes: Sequence[Change], begin_s: float, end_s: float
) -> Mapping[float, float]:
    """Length in s → the share by which 95 % of the energies between changes of the counter that far
    apart are off at most, by the wave's mean power. Lengths of which there is none are left out.
    """
    inside = [change for change in changes if begin_s <= change[0] <= end_s]
    times, joules = np.array(inside).reshape(-1, 2).T
    mean_w = (joules[-1] - joules[0]) / (times[-1] - times[0])
    shares = {}
    for length_s in LENGTHS_S:
        ends = np.searchsorted(times, times + length_s - 0.05)
        begins = np.arange(len(times))[ends < len(times)]
        ends = ends[ends < len(times)]
        if len(begins):
            powers_w = (joules[ends] - joules[begins]) / (times[ends] - times[begins])
            shares[length_s] = float(np.quantile(np.abs(powers_w / mean_w - 1), 0.95))
    return shares


def fit_look(samples: Sequence[Change], begins_s: Sequence[float], ends_s: Sequence[float]) -> Look:
    """What the looks see of a wave whose work began and ended at these times: a look is a box, so
    that it takes its length to go from the low to the high power.

    Raises ValueError for fewer than 100 samples within the wave.
    """
    begins, ends = np.asarray(begins_s), np.asarray(ends_s)
    period_s = float(np.median(np.diff(begins)))
    worked_s = float(np.median(ends - begins))
    inside = [sample for sample in samples if begins[0] + 0.5 <= sample[0] < begins[-1]]
    if len(inside) < 100:
        raise ValueError(f"{len(inside)} samples are too few for a look")
    times, values = np.array(inside).T
    phases = times - begins[np.searchsorted(begins, times, side="right") - 1]

    def seen(parameters: Array) -> Array:
        low, rise, delay, length = parameters
        # The share of the look [t − delay − length/2, t − delay + length/2] in which the GPU works.
        middle = phases - delay
        shares = np.zeros_like(middle)
        for turn in (-2, -1, 0, 1):
            since = np.maximum(middle - length / 2, turn * period_s)
            until = np.minimum(middle + length / 2, turn * period_s + worked_s)
            shares += np.maximum(0.0, until - since) / length
        return low + rise * shares

    # A wave that works half of the time, half a period later, is the same one upside down: so the
    # rise is not negative.
    low_w, high_w = np.quantile(values, (0.1, 0.9))
    fits = [
        least_squares(
            lambda parameters: seen(parameters) - values,
            (low_w, high_w - low_w, delay, length),
            bounds=((0, 0, -period_s, 1e-4), (2000, 2000, period_s, period_s)),
            loss="soft_l1",
            f_scale=20.0,
            x_scale=(10.0, 10.0, 1e-3, 1e-3),
        )
        for delay in np.linspace(-period_s / 2, period_s / 2, 9)
        for length in (0.002, 0.01)
    ]
    best = min(fits, key=lambda fit: fit.cost).x
    low, rise, delay, length = best
    misses = seen(best) - values
    return Look(length, delay % period_s, low, low + rise, float(1 - misses.var() / values.var()))
