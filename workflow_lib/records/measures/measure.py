"""What a measure is, and what many of them share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from workflow_lib.records.columns import Column

#: files of a sampler
File = Literal["gpu", "counters", "host"]
#: what a sensor's readings come to over the measured steps: their time-weighted mean, highest or
#: lowest, or by how much a counter rose between the two readings about the steps
Statistic = Literal["mean", "peak", "lowest", "increase"]
Over = Literal["mean", "max", "min", "sum"]
Level = Literal["run", "node", "gpu"]
#: what GPUs' readings a measure rests on; "" where it rests on none, as those of ranks' clocks
Sensor = Literal["", "power", "temperature", "clock", "events", "memory", "host", "other"]
#: where pages show a measure besides on the page of its cell, which shows all: in the table of
#: cells, among what says how well runs were watched, as panels beside options that vary
Place = Literal["cells", "watched", "panels"]


@dataclass(frozen=True)
class Reading:
    """A sensor's readings, and what they come to."""

    file: File
    column: str
    statistic: Statistic
    #: by which the figure is multiplied: 0.01 makes a share of percent
    factor: float = 1.0


@dataclass(frozen=True)
class Contrast:
    """How two sweeps are contrasted by a measure."""

    #: what A does where it has more, and where it has less: "{}" is by how much
    more: str
    less: str
    kind: Literal["ratio", "difference"] = "ratio"


@dataclass(frozen=True)
class Measure:
    """One measure of a run; GPUS, NODES and the plan's estimates have some of the same kind."""

    name: str
    #: as it is stored
    unit: str
    description: str
    #: what people call it
    heading: str
    #: the unit that people read it in, and by what the stored value is multiplied to be in it
    people: tuple[str, float] | None = None
    type: type = float
    better: Literal["", "most", "least"] = ""
    #: of the best cell by it: "Fastest"
    question: str = ""
    #: the state that a share of time is spent in: "at the power cap"
    state: str = ""
    sensor: Sensor = ""
    #: whether a gain error of power sensors raises it (1) or lowers it (−1)
    gain: Literal[-1, 0, 1] = 0
    reading: Reading | None = None
    #: what has a figure of its own before the run has one; that of its sensor where it is read
    #: from one
    level: Level = "run"
    #: how the figures of GPUs, or of nodes, make that of a run; "" where its own formula does
    over: Over | Literal[""] = ""
    #: the workloads that it means something for; empty: all
    workloads: tuple[str, ...] = ()
    places: tuple[Place, ...] = ()
    #: label of a panel; needed among "panels" alone
    panel: str = ""
    #: whether 0 means something, so that bars begin there
    from_zero: bool = True
    contrast: Contrast | None = None

    def __post_init__(self) -> None:
        if self.reading is not None:
            level = "node" if self.reading.file == "host" else "gpu"
            object.__setattr__(self, "level", level)

    @property
    def column(self) -> Column:
        """It as a column of a table."""
        return Column(self.name, self.type, self.unit, self.description)

    @property
    def people_unit(self) -> str:
        """The unit that people read."""
        return self.people[0] if self.people else self.unit

    @property
    def factor(self) -> float:
        """By what the stored value is multiplied to be in ``people_unit``."""
        return self.people[1] if self.people else 1.0

    @property
    def decimals(self) -> int | None:
        """The most decimals that mean something; None where significant digits decide.

        What a share in percent has beyond them is noise of the arithmetic.
        """
        return 2 if "%" in self.people_unit else None

    def applies(self, workload: str) -> bool:
        """Whether it means anything for a workload."""
        return not self.workloads or workload in self.workloads


TRAINING = ("pretrain", "lora")
INFERENCE = ("inference",)
PERCENT = ("%", 100.0)
PERCENT_OF_TIME = ("% of time", 100.0)
RATE, RATE_PER_GPU = ("tokens/s", 1.0), ("tokens/s/GPU", 1.0)
KILOJOULES, GIGABYTES, MILLISECONDS = ("kJ", 1e-3), ("GB", 1e-9), ("ms", 1e3)


def faster(doing: str) -> Contrast:
    return Contrast(f"{doing} {{}} faster", f"{doing} {{}} slower")


def more(words: str) -> Contrast:
    """The word "more" in ``words`` becomes "less"."""
    return Contrast(words, words.replace("more", "less"))


def hotter(where: str) -> Contrast:
    return Contrast(f"is {{}} hotter {where}", f"is {{}} cooler {where}", "difference")


def longer(state: str) -> Contrast:
    return Contrast(
        f"spends {{}} more of the time {state}",
        f"spends {{}} less of the time {state}",
        "difference",
    )
