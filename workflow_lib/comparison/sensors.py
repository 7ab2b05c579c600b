"""What the errors of power sensors may do to the ratio of two cells.

A sensor reads (1 + gain) · power + offset (:mod:`workflow_lib.power_errors`). GPU i gave the share
aᵢ of A's energy and bᵢ of B's, by the readings. Where these say that both energies are equal, the
true ratio is

    Σ wᵢ (aᵢ − αᵢ oᵢ)  /  Σ wᵢ (bᵢ − βᵢ oᵢ),     wᵢ = 1/(1 + gainᵢ)

with an offset oᵢ in W, and αᵢ, βᵢ what 1 W is of the power of all GPUs. A GPU has one gain and one
offset on both sides, so what GPUs with like shares add cancels. The ratio is linear-fractional in
each wᵢ and oᵢ, so its extremes put each of them at an end. W. Dinkelbach's method (Management
Science 13(7), 1967) finds which: at the greatest ratio λ, each term of numerator − λ · denominator
is at its greatest.

A ratio's estimate is a mean of logarithms over runs. Runs of both sides on one set of GPUs have the
factor above. So have the runs that a side has on a set beyond the other side's share of runs on it,
against those of the other side; if they are on several sets, as if no GPU were on both sides.
Weighted by shares of runs, the logarithms of these factors add up to a bound. It is exact if a side
has one set of GPUs, or each run one GPU.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from workflow_lib.power_errors import PUBLISHED, SensorError


class Sensor(NamedTuple):
    """A GPU's sensor of power."""

    #: the GPU's UUID, or what tells it from others of its run
    gpu: str
    #: the only side that it is known to be on; "" if it is that GPU's wherever that is
    side: str = ""


class Read(NamedTuple):
    """What the sensors of a run read."""

    #: each sensor's power, in W: its mean, or its peak
    by_sensor: Mapping[Sensor, float]
    #: of all sensors together while the energy was taken, in W
    power_w: float

    def only_of(self, side: str) -> Read:
        """The same with sensors that are not those of the other side."""
        own = {Sensor(sensor.gpu, side): value for sensor, value in self.by_sensor.items()}
        return self._replace(by_sensor=own)


#: what is nothing but rounding of shares
_ROUNDING = 1e-12

#: GPU → what is known of its sensor, if that is more than of any
Errors = Mapping[str, SensorError]
#: the least and the greatest factor between the true ratio and that of the readings; None if an
#: offset may be all that a sensor read
Factors = tuple[float, float] | None
Judge = Callable[[Sequence[Read], Sequence[Read], Errors], Factors]


def over_sets(judge: Judge, a: Sequence[Read], b: Sequence[Read], errors: Errors) -> Factors:
    """The factors of all runs, from those that ``judge`` finds for each set of GPUs."""
    shares_a, shares_b = _shares(a), _shares(b)
    weighed: list[tuple[float, Factors]] = []
    for gpus in shares_a.keys() & shares_b.keys():
        on_a, on_b = ([run for run in side if run.by_sensor.keys() == gpus] for side in (a, b))
        weighed.append((min(shares_a[gpus], shares_b[gpus]), judge(on_a, on_b, errors)))
    rest = 1 - math.fsum(weight for weight, _ in weighed)
    if rest > _ROUNDING:
        more_a = [run for run in a if _is_more(run, shares_a, shares_b)]
        more_b = [run for run in b if _is_more(run, shares_b, shares_a)]
        if len(_shares(more_a)) > 1 or len(_shares(more_b)) > 1:
            more_a = [run.only_of("a") for run in more_a]
            more_b = [run.only_of("b") for run in more_b]
        weighed.append((rest, judge(more_a, more_b, errors)))
    low = high = 0.0
    for weight, factors in weighed:
        if factors is None:
            return None
        low += weight * math.log(factors[0])
        high += weight * math.log(factors[1])
    return math.exp(low), math.exp(high)


def _shares(runs: Sequence[Read]) -> dict[frozenset[Sensor], float]:
    """Set of sensors → its share of the runs."""
    counts = Counter(frozenset(run.by_sensor) for run in runs)
    return {gpus: count / len(runs) for gpus, count in counts.items()}


def _is_more(
    run: Read, own: Mapping[frozenset[Sensor], float], other: Mapping[frozenset[Sensor], float]
) -> bool:
    """Whether a run's sensors have a larger share of its side's runs than of the other's."""
    gpus = frozenset(run.by_sensor)
    return own[gpus] > other.get(gpus, 0.0) + _ROUNDING


class _Part(NamedTuple):
    """What a sensor gave of the energy of a side, as shares of it."""

    #: by the readings
    energy: float = 0.0
    #: what an offset of 1 W adds
    per_watt: float = 0.0


def of_energies(a: Sequence[Read], b: Sequence[Read], errors: Errors) -> Factors:
    """The factors of a ratio of energies, or of mean powers."""
    parts = _parts(a), _parts(b)
    for side in parts:
        for sensor, part in side.items():
            if part.energy <= errors.get(sensor.gpu, PUBLISHED).offset_w * part.per_watt:
                return None
    return 1 / _greatest(parts[1], parts[0], errors), _greatest(*parts, errors)


def _parts(runs: Sequence[Read]) -> dict[Sensor, _Part]:
    """The parts of a side's sensors: means over its runs."""
    parts: dict[Sensor, _Part] = {}
    for run in runs:
        whole = sum(run.by_sensor.values()) * len(runs)
        for sensor, value in run.by_sensor.items():
            energy, per_watt = parts.get(sensor, _Part())
            parts[sensor] = _Part(energy + value / whole, per_watt + 1 / run.power_w / len(runs))
    return parts


def _greatest(a: Mapping[Sensor, _Part], b: Mapping[Sensor, _Part], errors: Errors) -> float:
    terms = [
        (a.get(sensor, _Part()), b.get(sensor, _Part()), errors.get(sensor.gpu, PUBLISHED))
        for sensor in dict.fromkeys((*a, *b))
    ]
    ratio = 0.0
    while True:
        above = below = 0.0
        for of_a, of_b, error in terms:
            raises = of_a.per_watt < ratio * of_b.per_watt
            offset_w = error.offset_w if raises else -error.offset_w
            top = of_a.energy - of_a.per_watt * offset_w
            bottom = of_b.energy - of_b.per_watt * offset_w
            gain = error.gain_low if top > ratio * bottom else error.gain_high
            above += top / (1 + gain)
            below += bottom / (1 + gain)
        if above / below <= ratio * (1 + _ROUNDING):
            return ratio
        ratio = above / below


def of_peaks(a: Sequence[Read], b: Sequence[Read], errors: Errors) -> Factors:
    """The factors of a ratio of the highest powers of any GPU. Which GPU truly drew most may be
    another than the one whose sensor read most."""
    peaks = _peaks(a), _peaks(b)
    for side in peaks:
        if any(read <= errors.get(sensor.gpu, PUBLISHED).offset_w for sensor, read in side.items()):
            return None
    return 1 / _greatest_peak(peaks[1], peaks[0], errors), _greatest_peak(*peaks, errors)


def _peaks(runs: Sequence[Read]) -> dict[Sensor, float]:
    """Sensor → the mean peak of the runs that have it."""
    peaks: dict[Sensor, list[float]] = {}
    for run in runs:
        for sensor, read in run.by_sensor.items():
            peaks.setdefault(sensor, []).append(read)
    return {sensor: math.fsum(of) / len(of) for sensor, of in peaks.items()}


def _greatest_peak(a: Mapping[Sensor, float], b: Mapping[Sensor, float], errors: Errors) -> float:
    """One sensor is A's highest at the greatest ratio. Its own errors raise it over what the
    readings in B come to, and those of the others lower these."""
    lowest = {
        sensor: (read - error.offset_w) / (1 + error.gain_high)
        for sensor, read in b.items()
        for error in [errors.get(sensor.gpu, PUBLISHED)]
    }
    ratios = []
    for sensor, read in a.items():
        error = errors.get(sensor.gpu, PUBLISHED)
        others = max((value for other, value in lowest.items() if other != sensor), default=0.0)
        for gain in (error.gain_low, error.gain_high):
            # Between its ends the offset may make the sensor's own reading in B that of the others.
            even_w = b.get(sensor, 0.0) - others * (1 + gain)
            most_w = error.offset_w
            for offset_w in (-most_w, min(max(even_w, -most_w), most_w), most_w):
                own = (b[sensor] - offset_w) / (1 + gain) if sensor in b else 0.0
                ratios.append((read - offset_w) / (1 + gain) / max(own, others))
    return max(ratios) / (max(a.values()) / max(b.values()))
