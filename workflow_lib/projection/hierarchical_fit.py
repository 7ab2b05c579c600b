"""Fits a sum of parts to logarithms of times, with effects of groups, and predicts with intervals.

The logarithm of the time of row i is taken to be ::

    log( e^α · Σ_k r_k·x_ik  +  e^β · Σ_l r_l·x_il ) + γ·d_i + ε_i

with parts x of a pass and of a step and their rates r. The effects α and β are sums over the row's
groups, such as its stack. The growth γ is per doubling d of the GPUs; it is a mean plus each
series' own growth. ε is noise. All parameters have normal priors. Rates are fitted as logarithms,
so that none is negative.

The maximum of the posterior is found by the Gauss–Newton method, and its curvature there gives the
covariance (Laplace's approximation). There are more effects than rows, so equations are solved in
as many unknowns as there are rows (Rasmussen and Williams, Gaussian Processes for Machine Learning,
equation 2.12). Noise has Student's t distribution, by weights (Lange, Little and Taylor, JASA
84(408), 1989), so that an outlier does not bend the fit. The spread of each kind of effects is
estimated from the effects (expectation–maximisation: Dempster, Laird and Rubin, JRSS B 39(1),
1977), unless it is given.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: the weight of a kind's prior spread, in groups
_PRIOR_GROUPS = 4.0
#: degrees of freedom of the noise
_FREEDOM = 4.0
#: steps to the maximum in a round, after which spreads are estimated anew; the most rounds; the
#: changes of parameters and of spreads below which the fit has converged
_STEPS, _ROUNDS, _CLOSE, _SETTLED = 2, 40, 1e-3, 0.02


@dataclass(frozen=True)
class Prior:
    """A parameter's normal prior; for a rate, the prior of its logarithm."""

    mean: float
    sd: float


@dataclass(frozen=True)
class EffectKind:
    """A kind of effects, such as those of stacks: zero on average, with a spread."""

    #: what the effects multiply: pass, step, or both; "growth" is added for each doubling
    on: str
    sd: float
    #: whether the spread is estimated from the rows; ``sd`` is then its prior value
    estimated: bool = False


@dataclass(frozen=True)
class Problem:
    """The definition of a fit: parts and their priors, growth by class, kinds of effects."""

    pass_parts: tuple[str, ...]
    step_parts: tuple[str, ...]
    rates: Mapping[str, Prior]
    growth: Mapping[str, Prior]
    effects: Mapping[str, EffectKind]
    #: initial standard deviation of the noise by class
    noise_sd: Mapping[str, float]
    least_noise_sd: float = 1e-3


@dataclass(frozen=True)
class Row:
    """A step: its parts at the peak, its groups, and how often the GPUs of a node were doubled."""

    seconds: Mapping[str, float]
    #: kind of effect → the group that the row is in
    groups: Mapping[str, Hashable]
    #: the class of rows with the same mean growth and noise
    kind: str
    doublings: float
    #: the measured time; unused in a prediction
    time_s: float = float("nan")


@dataclass(frozen=True)
class Prediction:
    """The distribution of a time's logarithm, which is normal except for the noise."""

    log_s: float
    #: variance due to uncertain rates, effects and growth
    variance: float
    #: variance of one run about its expectation
    noise_variance: float
    #: part → its share of the expected time
    shares: Mapping[str, float]
    #: kinds of effects whose group no fitted row has; their whole spread is in the variance
    unseen: tuple[str, ...]

    @property
    def sd(self) -> float:
        """The standard deviation of a run's logarithm."""
        return float(np.sqrt(self.variance + self.noise_variance))

    @property
    def median_s(self) -> float:
        """The median time in s."""
        return float(np.exp(self.log_s))


class _Design:
    """Rows as arrays: their parts, and how each parameter acts on each row."""

    def __init__(
        self, problem: Problem, rows: Sequence[Row], index: Mapping[tuple[str, Hashable], int]
    ) -> None:
        shape = len(rows), len(index)
        self.parts = problem.pass_parts + problem.step_parts
        self.rates = [index["rate", part] for part in self.parts]
        self.is_pass = np.array([part in problem.pass_parts for part in self.parts])
        self.seconds = np.array(
            [[row.seconds.get(part, 0.0) for part in self.parts] for row in rows]
        ).reshape(len(rows), len(self.parts))
        self.doublings = np.array([row.doublings for row in rows])
        #: (rows, parameters): 1 where a parameter is an effect on a row's passes, step, both or
        #: growth
        self.on = {on: np.zeros(shape) for on in ("pass", "step", "both", "growth")}
        #: for each row, the kinds of its effects that are not among the parameters
        self.unseen: list[list[str]] = [[] for _ in rows]
        for number, row in enumerate(rows):
            self.on["growth"][number, index["growth", row.kind]] = 1.0
            for kind, group in row.groups.items():
                known = index.get((kind, group))
                if known is None:
                    self.unseen[number].append(kind)
                else:
                    self.on[problem.effects[kind].on][number, known] = 1.0

    def expected(self, values: Array) -> tuple[Array, Array, Array]:
        """The logarithms of the rows' times (rows), their derivatives by the parameters (rows,
        parameters), and the parts' shares (rows, parts)."""
        logs = {on: design @ values for on, design in self.on.items()}
        own = np.where(self.is_pass, logs["pass"][:, None], logs["step"][:, None])
        times = self.seconds * np.exp(values[self.rates] + own)
        totals = times.sum(axis=1)
        shares = times / totals[:, None]
        of_pass = shares[:, self.is_pass].sum(axis=1)
        slopes = (
            self.on["pass"] * of_pass[:, None]
            + self.on["step"] * (1 - of_pass)[:, None]
            + self.on["both"]
            + self.on["growth"] * self.doublings[:, None]
        )
        slopes[:, self.rates] += shares
        return np.log(totals) + logs["both"] + logs["growth"] * self.doublings, slopes, shares


@dataclass
class Fit:
    """Parameters at the posterior's maximum, and the distribution about it."""

    problem: Problem
    #: (kind, name) of each parameter → its index
    index: dict[tuple[str, Hashable], int]
    values: Array
    posterior: _Posterior
    effect_sd: dict[str, float]
    noise_sd: dict[str, float]
    residuals: Array

    def predict(self, rows: Sequence[Row]) -> list[Prediction]:
        """Predict the times of rows, with the fitted effects of their groups."""
        design = _Design(self.problem, rows, self.index)
        logs, slopes, shares = design.expected(self.values)
        known = self.posterior.variances(slopes)
        of_pass = shares[:, design.is_pass].sum(axis=1)
        predictions = []
        for number, row in enumerate(rows):
            weights = self._weights(of_pass[number], row)
            new = sum(
                (weights[self.problem.effects[kind].on] * self.effect_sd[kind]) ** 2
                for kind in design.unseen[number]
            )
            predictions.append(
                Prediction(
                    log_s=float(logs[number]),
                    variance=float(known[number] + new),
                    noise_variance=self.noise_sd[row.kind] ** 2,
                    shares=dict(zip(design.parts, shares[number].tolist(), strict=True)),
                    unseen=tuple(design.unseen[number]),
                )
            )
        return predictions

    def contrast(self, one: Row, other: Row) -> tuple[float, float]:
        """The logarithm of one row's time over another's, and its variance, with the noise of both.

        What is not known of a rate, or of a group that both are in, cancels as far as it bears on
        both alike.
        """
        design = _Design(self.problem, [one, other], self.index)
        logs, slopes, shares = design.expected(self.values)
        of_pass = shares[:, design.is_pass].sum(axis=1)
        new: dict[tuple[str, Hashable], float] = {}
        for number, (row, sign) in enumerate(((one, 1.0), (other, -1.0))):
            for kind in design.unseen[number]:
                key = kind, row.groups[kind]
                weight = self._weights(of_pass[number], row)[self.problem.effects[kind].on]
                new[key] = new.get(key, 0.0) + sign * weight
        variance = float(self.posterior.variances(slopes[:1] - slopes[1:])[0])
        variance += sum((factor * self.effect_sd[kind]) ** 2 for (kind, _), factor in new.items())
        variance += sum(self.noise_sd[row.kind] ** 2 for row in (one, other))
        return float(logs[0] - logs[1]), variance

    @staticmethod
    def _weights(of_pass: float, row: Row) -> dict[str, float]:
        """How an effect bears on the logarithm of a row's time, by what it is on."""
        return {"pass": of_pass, "step": 1 - of_pass, "both": 1.0, "growth": row.doublings}

    def parameter(self, kind: str, name: Hashable) -> tuple[float, float]:
        """A parameter and its standard deviation; of a rate, those of its logarithm."""
        values, covariance = self.parameters([(kind, name)])
        return float(values[0]), float(np.sqrt(covariance[0, 0]))

    def parameters(self, names: Sequence[tuple[str, Hashable]]) -> tuple[Array, Array]:
        """The values of these parameters, and their covariance."""
        chosen = [self.index[name] for name in names]
        return self.values[chosen], self.posterior.covariance(chosen)

    @classmethod
    def of_parameters(
        cls,
        problem: Problem,
        names: Sequence[tuple[str, Hashable]],
        values: Array,
        covariance: Array,
        sds: tuple[dict[str, float], dict[str, float]],
    ) -> Fit:
        """A fit of what :meth:`parameters` gave; ``sds`` are those of effects and noise."""
        index = {name: number for number, name in enumerate(names)}
        # Unit variances, less what leaves the covariance.
        unit = np.eye(len(index))
        posterior = _Posterior(np.ones(len(index)), unit, unit - covariance)
        return cls(problem, index, values, posterior, *sds, residuals=np.zeros(0))


@dataclass(frozen=True)
class _Posterior:
    """The normal distribution of the parameters: the prior, and what the rows add to it."""

    #: variance of each parameter before any row is seen
    prior_variance: Array
    #: (rows, parameters): the derivatives at the rows
    slopes: Array
    #: (rows, rows): the inverse of the covariance of the rows' values
    precision: Array

    def variances(self, slopes: Array) -> Array:
        """The variances of sums of parameters; each row of ``slopes`` holds the
        weights of one sum."""
        scaled = slopes * self.prior_variance
        before = (scaled * slopes).sum(axis=1)
        shared = scaled @ self.slopes.T
        left: Array = before - ((shared @ self.precision) * shared).sum(axis=1)
        return left.clip(min=0.0)

    def covariance(self, chosen: Sequence[int]) -> Array:
        """The covariance of the parameters with these indices."""
        prior = self.prior_variance[list(chosen)]
        shared = self.slopes[:, list(chosen)] * prior
        left: Array = np.diag(prior) - shared.T @ self.precision @ shared
        return left

    def own(self) -> Array:
        """The variance of each parameter."""
        taken = (self.slopes * (self.precision @ self.slopes)).sum(axis=0)
        left: Array = self.prior_variance - self.prior_variance**2 * taken
        return left.clip(min=0.0)


def fit(problem: Problem, rows: Sequence[Row]) -> Fit:
    """Fit to rows. Without rows the result holds the priors."""
    groups = dict.fromkeys((kind, group) for row in rows for kind, group in row.groups.items())
    names: list[tuple[str, Hashable]] = [("rate", part) for part in problem.rates]
    names += [("growth", kind) for kind in problem.growth]
    names += groups
    index = {name: number for number, name in enumerate(names)}
    priors = [*problem.rates.values(), *problem.growth.values()]
    means = np.array([prior.mean for prior in priors] + [0.0] * len(groups))
    effect_sd = {kind: effect.sd for kind, effect in problem.effects.items()}
    noise_sd = dict(problem.noise_sd)
    design = _Design(problem, rows, index)
    logs = np.log(np.array([row.time_s for row in rows]))
    values = means.copy()
    for _ in range(_ROUNDS):
        spread = np.array([prior.sd for prior in priors] + [effect_sd[kind] for kind, _ in groups])
        noise = np.array([noise_sd[row.kind] for row in rows])
        last = values
        values, posterior, residuals, variance = _maximum(
            design, values, (means, spread), (logs, noise)
        )
        before = [*effect_sd.values(), *noise_sd.values()]
        _spreads(problem, names, values, posterior.own(), effect_sd)
        for kind in noise_sd:
            of = np.array([row.kind == kind for row in rows], dtype=bool)
            if of.any():
                noise_sd[kind] = max(float(np.sqrt(variance[of].mean())), problem.least_noise_sd)
        after = [*effect_sd.values(), *noise_sd.values()]
        settled = all(abs(a - b) < _SETTLED * b for a, b in zip(after, before, strict=True))
        if settled and float(np.abs(values - last).max(initial=0.0)) < _CLOSE:
            break
    return Fit(problem, index, values, posterior, effect_sd, noise_sd, residuals)


def _maximum(
    design: _Design, values: Array, prior: tuple[Array, Array], data: tuple[Array, Array]
) -> tuple[Array, _Posterior, Array, Array]:
    """Take steps to the posterior's maximum for given spreads. Returns values, their distribution,
    residuals, and each row's estimate of the noise's variance."""
    means, spread = prior
    logs, noise = data
    for _ in range(_STEPS):
        expected, slopes, _ = design.expected(values)
        residuals = logs - expected
        # Student's t: outliers count for less.
        weights = (_FREEDOM + 1) / (_FREEDOM + (residuals / noise) ** 2)
        scaled = slopes * spread**2
        seen: Array = scaled @ slopes.T + np.diag(noise**2 / weights)
        precision = np.asarray(np.linalg.inv(seen), dtype=np.float64)
        aim = means + scaled.T @ (precision @ (residuals + slopes @ (values - means)))
        change = aim - values
        largest = float(np.abs(change).max(initial=0.0))
        # Parameters, which are logarithms, move by at most 1 per step: further off the model is not
        # linear.
        values = values + change / max(1.0, largest)
    posterior = _Posterior(spread**2, slopes, precision)
    own = posterior.variances(slopes)
    return values, posterior, residuals, weights * (residuals**2 + own)


def _spreads(
    problem: Problem,
    names: Sequence[tuple[str, Hashable]],
    values: Array,
    variances: Array,
    effect_sd: dict[str, float],
) -> None:
    """Estimate each kind's spread from its effects and their variances; updates ``effect_sd``."""
    for kind, effect in problem.effects.items():
        own = [number for number, (of, _) in enumerate(names) if of == kind]
        if effect.estimated and own:
            squares = values[own] ** 2 + variances[own]
            variance = (_PRIOR_GROUPS * effect.sd**2 + squares.sum()) / (_PRIOR_GROUPS + len(own))
            effect_sd[kind] = float(np.sqrt(variance))
