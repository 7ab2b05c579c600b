"""Draws of GPUs' effects, by resampling whole runs.

Runs, not readings, are drawn, because what happens in a run happens to all of its GPUs. A draw in
which GPUs cannot be told from stages is drawn again. The spread of means over resampled runs is too
small by √((R − 1) / R) for R runs; draws are stretched about the estimate for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from workflow_lib.placement.effects import Floats, Place
from workflow_lib.placement.readings import Measured, Reading
from workflow_lib.records.reading import RecordError

#: of each run, so many times
DRAWS = 2000
_SEED = 20
_MOST_ATTEMPTS = 20


class Weights:
    """How often each run is in each draw, (draws, runs); the first draw has each run once."""

    def __init__(self, measured: Measured, draws: int = DRAWS, seed: int = _SEED) -> None:
        self.runs = sorted({reading.key for reading in measured.readings})
        self.count = len(self.runs)
        self.generator = np.random.default_rng(seed)
        self.of_runs = self._drawn(draws)
        self.of_runs[0] = 1

    def _drawn(self, draws: int) -> Floats:
        equal = np.full(self.count, 1 / self.count)
        return self.generator.multinomial(self.count, equal, size=draws).astype(np.float64)

    def again(self, rows: npt.NDArray[np.bool_]) -> None:
        """Draw some anew."""
        self.of_runs[rows] = self._drawn(int(rows.sum()))


def solved(
    measured: Measured,
    weights: Weights,
    design: Floats,
    observed: Floats,
    wanted: Sequence[int],
) -> Floats:
    """Parameters by least squares in each draw, (draws, parameters), stretched.

    ``design`` is (readings, parameters) and ``observed`` (readings). Raises RecordError where the
    ``wanted`` parameters cannot be told from the others in most draws.
    """
    at = {run: number for number, run in enumerate(weights.runs)}
    of_reading = [at[reading.key] for reading in measured.readings]
    width = design.shape[1]
    grams = np.zeros((weights.count, width, width))
    products = np.zeros((weights.count, width))
    for row, value, run in zip(design, observed, of_reading, strict=True):
        grams[run] += np.outer(row, row)
        products[run] += row * value
    for _ in range(_MOST_ATTEMPTS):
        gram = np.einsum("dr,rij->dij", weights.of_runs, grams)
        lacking = np.linalg.matrix_rank(gram, hermitian=True) < width
        if not lacking.any():
            break
        weights.again(lacking)
    else:
        raise RecordError(
            f"{measured.sweep}: too few runs to tell GPUs from stages: run each order of the GPUs "
            "three times"
        )
    parameters = np.linalg.solve(gram, np.einsum("dr,ri->di", weights.of_runs, products)[..., None])
    chosen: Floats = parameters[..., 0][:, list(wanted)]
    stretch = math.sqrt(weights.count / (weights.count - 1))
    return np.asarray(chosen[0] + stretch * (chosen - chosen[0]))


def within_runs(measured: Measured, matrix: Floats) -> Floats:
    """Columns less their mean over each run: what runs have in common is gone."""
    keys = [reading.key for reading in measured.readings]
    centred = matrix.copy()
    for run in set(keys):
        mine = [number for number, key in enumerate(keys) if key == run]
        centred[mine] -= centred[mine].mean(axis=0)
    return centred


def by_gpu_and_duty(
    measured: Measured,
    weights: Weights,
    places: Sequence[Place],
    duty: Mapping[str, Floats],
    value: Callable[[Reading], float],
    unknown: Floats,
) -> tuple[dict[Place, Floats], Floats]:
    """A quantity as each GPU's own value plus so much for duty: both in each draw.

    Duty is the share of a step for which a GPU computes, by cell: (draws, stages). It is not
    measured, so each draw has its own. A GPU that computes all the time has no less than one that
    waits, and one that waits has no less than nothing: the effect of duties that hardly differ
    would be anything. Where no GPU had different duties, nothing more can be said of the effect. It
    is then the share ``unknown`` of the most that it can be, (draws).
    """
    at = {run: number for number, run in enumerate(weights.runs)}
    once = np.ones_like(weights.of_runs)
    mine: dict[Place, list[Reading]] = {place: [] for place in places}
    for reading in measured.readings:
        mine[reading.node, reading.gpu].append(reading)
    stretch = math.sqrt(weights.count / (weights.count - 1))
    centres, of_place = {}, []
    for place, its in mine.items():
        duties = np.stack([duty[reading.cell][:, reading.stage] for reading in its], axis=-1)
        values = np.array([value(reading) for reading in its])
        runs = [at[reading.key] for reading in its]
        sums = [_moments(of_runs[:, runs], duties, values) for of_runs in (once, weights.of_runs)]
        centres[place] = sums[0][:2] + stretch * (sums[1][:2] - sums[0][:2])
        of_place.append((np.stack([moments[2:] for moments in sums]), np.ptp(duties, axis=-1)))
    squares, products = np.sum([moments for moments, _ in of_place], axis=0).swapaxes(0, 1)
    varies = np.max([apart for _, apart in of_place], axis=0) > 0.01
    is_known = squares > 1e-9 * squares[0]
    of_all, of_sample = np.divide(products, squares, out=np.zeros_like(products), where=is_known)
    # A sample may have no GPU at two duties. It says nothing that all runs do not.
    of_sample = np.where(is_known[1], of_sample, of_all)
    mean_duty, mean_value = np.mean([*centres.values()], axis=0)
    most = mean_value / mean_duty
    effect = np.where(varies, of_all + stretch * (of_sample - of_all), unknown * most)
    slope = np.clip(effect, 0, most)
    own_values = {}
    for place, (own_duty, own_value) in centres.items():
        # As much as found at the mean duty.
        own_values[place] = own_value + effect * (mean_duty - own_duty) - slope * mean_duty
    return own_values, slope


def _moments(weight: Floats, duties: Floats, values: Floats) -> Floats:
    """Of one GPU, by draw: mean duty, mean value, and the sums about them of squares of duties and
    of products; all of (draws, readings) but the values."""
    total = weight.sum(axis=-1)
    duty, value = (weight * duties).sum(axis=-1) / total, (weight @ values) / total
    apart = weight * (duties - duty[:, None])
    products = (apart * values).sum(axis=-1)
    return np.stack([duty, value, (apart * duties).sum(axis=-1), products])
