"""How far hosts of one kind differ: the one figure for comparisons and projections.

The same cells ran on several sets of GPUs, each on a host of its own. Least squares find an effect
of each cell and one of each host, which add up; values are logarithms, or temperatures::

    value  =  cell  +  host  +  noise

Hosts that share cells, directly or through others, are a *group*. The squares of its effects
over their degrees of freedom, one fewer than hosts, estimate the variance between hosts. Noise of
runs is a part of it, which makes it greater. The groups' variances are pooled by their degrees of
freedom. How far an unseen host lies from another then follows Student's t with the sum of these
degrees, which includes how uncertain the standard deviation itself is.

``research.pages.hosts`` computes the groups below from the evidence and from published
runs; docs/results/hosts.md shows them. No set of GPUs came again on another date, so an effect of
dates was not measured apart. It is assumed to be no greater than that of a host.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from workflow_lib.intervals import students_t

Member = TypeVar("Member", bound=Hashable)


@dataclass(frozen=True)
class Group:
    """Hosts on which the same cells ran, and the standard deviations between them."""

    what: str
    hosts: int
    #: of logarithms of tokens/s
    speed_sd: float
    #: of mean temperatures of GPUs, in °C; None if the source has none
    temperature_sd_c: float | None = None


@dataclass(frozen=True)
class Spread:
    """The standard deviation between hosts, with the degrees of freedom that it was estimated
    with."""

    sd: float
    degrees: int

    @property
    def predictive_sd(self) -> float:
        """The standard deviation of an unseen host's effect: that of Student's t. It is for methods
        that take the effect for normal."""
        return self.sd * math.sqrt(self.degrees / (self.degrees - 2))

    def of_two(self, coverage: float) -> float:
        """By how much two hosts differ at most, in this share of cases."""
        return students_t.quantile(self.degrees, (1 + coverage) / 2) * math.sqrt(2) * self.sd


def pooled(sds: Iterable[tuple[int, float]]) -> Spread:
    """The spread by several groups together, from the hosts and the standard deviation of each."""
    of_groups = [(hosts - 1, sd) for hosts, sd in sds]
    degrees = sum(of for of, _ in of_groups)
    return Spread(math.sqrt(sum(of * sd**2 for of, sd in of_groups) / degrees), degrees)


def connected(sets: Iterable[Set[Member]]) -> list[frozenset[Member]]:
    """The sets, of which those that share a member, directly or through others, are one."""
    groups: list[frozenset[Member]] = []
    for members in sets:
        sharing = [group for group in groups if members & group]
        groups = [group for group in groups if group not in sharing]
        groups.append(frozenset(members).union(*sharing))
    return groups


#: GPUs ran kernels all the time. Published rows are of systems that state one layout in one round
BUSY = (
    Group("training, 1 H100", 2, 0.0113, 8.3),
    Group("training, 1 H100, other hosts", 4, 0.0078, 5.2),
    Group("training, 1 H200", 4, 0.0016, 0.7),
    Group("training, 2 H200", 3, 0.0097, 1.9),
    Group("training, 2 H200, other hosts", 2, 0.0071, 0.3),
    Group("decoding by CUDA graphs, 1 H200", 3, 0.0046, 4.7),
    Group("MLPerf Training v4.0, Llama 2 70B LoRA, 8 H100", 4, 0.0115),
    Group("MLPerf Training v4.1, Llama 2 70B LoRA, 8 H200", 3, 0.0058),
    Group("MLPerf Training v4.1, Llama 2 70B LoRA, 8 H100", 3, 0.0163),
)
#: GPUs waited for the host's CPU, to launch kernels or to move bytes by TCP
WAITING = (
    Group("decoding without CUDA graphs, 1 H200", 2, 0.0057, 6.2),
    Group("decoding without CUDA graphs, 1 H100", 2, 0.252, 13.5),
    Group("decoding without CUDA graphs, 1 H200, other hosts", 2, 0.1725, 4.6),
    Group("training on emulated nodes, 2 H200", 2, 0.0791, 1.6),
)


def _spreads(groups: Sequence[Group]) -> tuple[Spread, Spread]:
    """Of logarithms of speeds, and of temperatures."""
    speeds = [(group.hosts, group.speed_sd) for group in groups]
    warm = [(g.hosts, g.temperature_sd_c) for g in groups if g.temperature_sd_c is not None]
    return pooled(speeds), pooled(warm)


#: Of logarithms of rates, times, energies and powers. Energy per token has the same spread as speed
#: within 0.1 % (docs/results/hosts.md): at a power limit a faster GPU takes less energy.
BUSY_SPREAD, BUSY_SPREAD_C = _spreads(BUSY)
WAITING_SPREAD, WAITING_SPREAD_C = _spreads(WAITING)
