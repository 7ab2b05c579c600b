"""The type of a measure, its kinds, and constants that many measures share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Literal

from workflow_lib.records.columns import Column, SampledColumn, sampled
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES, HOST_SAMPLES

#: files of a sampler
File = Literal["gpu", "counters", "host"]
#: their readings, by name
SAMPLED: Mapping[File, Mapping[str, SampledColumn]] = {
    "gpu": sampled(GPU_SAMPLES),
    "counters": sampled(GPU_COUNTERS),
    "host": sampled(HOST_SAMPLES),
}
#: the statistic of a sensor's readings over the measured steps: their time-weighted mean, highest
#: or lowest; or how much a counter rose between the readings just before and just after the steps
Statistic = Literal["mean", "peak", "lowest", "increase"]
Over = Literal["mean", "max", "min", "sum"]
Level = Literal["run", "node", "gpu"]
#: the kind of readings that a measure is computed from; "" if from none, but from ranks' clocks
Sensor = Literal["", "power", "temperature", "clock", "events", "memory", "host", "other"]
#: where a sweep's page shows a measure: in the table of cells, in the table of how runs were
#: sampled, or in panels over varied options. A cell's page shows all measures
Place = Literal["cells", "watched", "panels"]


@dataclass(frozen=True)
class Reading:
    """A sensor's readings, and their statistic."""

    file: File
    column: str
    statistic: Statistic
    #: the value is multiplied by this: 0.01 turns percent into a share
    factor: float = 1.0

    def __post_init__(self) -> None:
        is_counter = SAMPLED[self.file][self.column].kind == "counter"
        if is_counter != (self.statistic == "increase"):
            raise ValueError(f"{self.column} has no {self.statistic}: see the kind of its column")


@dataclass(frozen=True)
class Contrast:
    """How two sweeps are contrasted by a measure."""

    #: what A does if its value is larger, and if it is smaller; "{}" stands for the difference
    more: str
    less: str
    kind: Literal["ratio", "difference"] = "ratio"


@dataclass(frozen=True)
class Measure:
    """One measure of a run, of a GPU or of a node, or one estimate of the plan."""

    name: str
    #: its name on pages
    heading: str
    description: str
    #: the unit in tables
    unit: str = ""
    #: the unit on pages, and the factor from the stored unit to it; null if the units are the same
    people: tuple[str, float] | None = None
    type: type = float
    better: Literal["", "most", "least"] = ""
    #: what pages call the best cell by this measure: "Fastest"
    question: str = ""
    #: the measure that pages show beside its value, in words or in the next column: its inverse,
    #: which other people read
    beside: str = ""
    #: for a share of time, the state: "at the power cap"
    state: str = ""
    sensor: Sensor = ""
    #: whether a gain error of power sensors raises it (1) or lowers it (−1)
    gain: Literal[-1, 0, 1] = 0
    reading: Reading | None = None
    #: the smallest unit that has a value of its own: gpu, node or run. It follows from ``reading``
    #: if there is one
    level: Level = "run"
    #: how the values of GPUs or nodes become that of a run; "" if it has a formula of its own
    over: Over | Literal[""] = ""
    #: the workloads that it applies to; empty means all
    workloads: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    #: label of its panel; needed only if ``places`` has "panels"
    panel: str = ""
    #: whether bars of a figure begin at 0
    from_zero: bool = True
    contrast: Contrast | None = None

    def __post_init__(self) -> None:
        if self.reading is not None:
            level = "node" if self.reading.file == "host" else "gpu"
            object.__setattr__(self, "level", level)

    @property
    def column(self) -> Column:
        """Its column in tables."""
        return Column(self.name, self.type, self.unit, self.description)

    @property
    def people_unit(self) -> str:
        """The unit on pages."""
        return self.people[0] if self.people else self.unit

    @property
    def factor(self) -> float:
        """The factor from the stored unit to ``people_unit``."""
        return self.people[1] if self.people else 1.0

    @property
    def decimals(self) -> int | None:
        """The most decimals that pages show; None if they show significant digits instead.

        Further decimals of a percentage are noise of the arithmetic.
        """
        return 2 if "%" in self.people_unit else None

    def applies(self, workload: str) -> bool:
        """Whether the measure applies to a workload."""
        return not self.workloads or workload in self.workloads


TRAINING = ("pretrain", "lora")
INFERENCE = ("inference",)
PERCENT = ("%", 100.0)
PERCENT_OF_TIME = ("% of time", 100.0)
RATE, RATE_PER_GPU = ("tokens/s", 1.0), ("tokens/s/GPU", 1.0)
J_PER_TOKEN = ("J/token", 1.0)
KILOJOULES, GIGABYTES, MILLISECONDS = ("kJ", 1e-3), ("GB", 1e-9), ("ms", 1e3)

# Kinds of measures: what most measures of a unit have in common.
count = partial(Measure, type=int)
seconds = partial(Measure, unit="s")
rate = partial(Measure, unit="1/s", people=RATE_PER_GPU, better="most")
share = partial(Measure, people=PERCENT)
share_of_time = partial(Measure, people=PERCENT_OF_TIME)
efficiency = partial(Measure, better="most", sensor="power", gain=-1)
power = partial(Measure, unit="W", sensor="power", gain=1)
energy = partial(Measure, unit="J", people=KILOJOULES, sensor="power", gain=1)
temperature = partial(Measure, unit="°C", sensor="temperature", from_zero=False)
clock = partial(Measure, unit="MHz", sensor="clock", from_zero=False)
memory = partial(Measure, unit="B", people=GIGABYTES, sensor="memory")


def faster(doing: str) -> Contrast:
    return Contrast(f"{doing} {{}} faster", f"{doing} {{}} slower")


def more(words: str) -> Contrast:
    """A contrast whose words for less are ``words`` with "less" in place of "more"."""
    return Contrast(words, words.replace("more", "less"))


def hotter(where: str) -> Contrast:
    return Contrast(f"is {{}} hotter {where}", f"is {{}} cooler {where}", "difference")


def longer(state: str) -> Contrast:
    return Contrast(
        f"spends {{}} more of the time {state}",
        f"spends {{}} less of the time {state}",
        "difference",
    )
