"""Draws of GPUs' effects, by resampling whole runs.

Runs, not readings, are drawn, because what happens in a run happens to all of its GPUs. A draw in
which GPUs cannot be told from stages is drawn again. The spread of means over resampled runs is too
small by √((R − 1) / R) for R runs; draws are stretched about the estimate for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from workflow_lib.placement.effects import Place
from workflow_lib.placement.readings import Measured, Reading
from workflow_lib.records import RecordError

Floats = npt.NDArray[np.float64]

#: of each run, so many times
DRAWS = 2000
_SEED = 20
_MOST_ATTEMPTS = 20


class Weights:
    """How often each run is in each draw, (draws, runs); the first draw has each run once."""

    def __init__(self, measured: Measured, draws: int = DRAWS, seed: int = _SEED) -> None:
        self.runs = sorted({each.key for each in measured.readings})
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
    of_reading = [at[each.key] for each in measured.readings]
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
    found = np.linalg.solve(gram, np.einsum("dr,ri->di", weights.of_runs, products)[..., None])
    chosen: Floats = found[..., 0][:, list(wanted)]
    stretch = math.sqrt(weights.count / (weights.count - 1))
    return np.asarray(chosen[0] + stretch * (chosen - chosen[0]))


def within_runs(measured: Measured, matrix: Floats) -> Floats:
    """Columns less their mean over each run: what runs have in common is gone."""
    keys = [each.key for each in measured.readings]
    centred = matrix.copy()
    for run in set(keys):
        mine = [number for number, key in enumerate(keys) if key == run]
        centred[mine] -= centred[mine].mean(axis=0)
    return centred


def by_gpu_and_duty(
    measured: Measured,
    weights: Weights,
    places: Sequence[Place],
    duty: Sequence[float],
    value: Callable[[Reading], float],
) -> tuple[dict[Place, Floats], Floats]:
    """A quantity as each GPU's own value plus so much for duty: both in each draw.

    Duty is the share of a step for which a GPU computes. Where it is the same in all readings,
    nothing can be said of its effect, which is then 0. A GPU that computes all the time has no less
    than one that waits, and one that waits has no less than nothing: the effect of duties that
    hardly differ would be anything.
    """
    duties = np.asarray(duty)
    varies = float(np.ptp(duties)) > 0.01
    own = np.array(
        [[(each.node, each.gpu) == place for place in places] for each in measured.readings],
        dtype=np.float64,
    )
    design = np.column_stack([own, duties]) if varies else own
    observed = np.array([value(each) for each in measured.readings])
    found = solved(measured, weights, design, observed, range(design.shape[1]))
    own_values = {place: found[:, number] for number, place in enumerate(places)}
    if not varies:
        return own_values, np.zeros(len(found))
    mean_duty, mean_value = float(duties.mean()), float(observed.mean())
    slope = np.clip(found[:, -1], 0, mean_value / mean_duty)
    # As much as before at the mean duty.
    kept = (found[:, -1] - slope) * mean_duty
    return {place: values + kept for place, values in own_values.items()}, slope
