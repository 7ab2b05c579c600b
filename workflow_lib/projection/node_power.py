"""Power of nodes at the wall: a floor, and the rest in proportion to throughput.

``P(n) = F + (P(1) − F) · u``, where u is the throughput a GPU on n nodes over that on one. A GPU
that does not work waits in collectives, at the power of waiting; the rest of the node takes as much
as ever. This is of one cooling: fans of air-cooled nodes take a kilowatt more at equal
work.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from importlib import resources
from statistics import NormalDist
from typing import Any

from workflow_lib.projection.metrics import LEVELS, Coverage, Errors

_FILE = resources.files("workflow_lib.projection") / "data" / "power.csv"

#: A guess: one of eight H100 takes 120 to 210 W while it waits in a collective; two processors,
#: memory, four switches and eight adapters, without fans, 800 to 1 200 W. Whoever made it had seen
#: an estimate from the very runs that it is tested on (about 2 kW), so that test is not clean.
FLOOR_W, FLOOR_SD_W = 2300.0, 350.0
#: of one run's mean power about the line: throughputs of short runs are that uncertain
_OWN_SD = 0.03


@dataclass(frozen=True)
class NodePower:
    """Measured runs of a benchmark. Power is a node's mean, in W; energy is all nodes', in kWh."""

    benchmark: str
    nodes: int
    cooling: str
    node_power_w: float
    #: None where the source does not say
    samples_per_s: float | None
    duration_s: float
    energy_kwh: float
    source: str

    @property
    def samples_per_s_per_node(self) -> float:
        """Raises ValueError where throughput is not known."""
        if self.samples_per_s is None:
            raise ValueError(f"{self.benchmark} on {self.nodes} nodes: throughput is not known")
        return self.samples_per_s / self.nodes


def read_power() -> list[NodePower]:
    """The measured runs that the product ships."""
    with _FILE.open(encoding="utf-8") as lines:
        return [
            NodePower(
                benchmark=row["benchmark"],
                nodes=int(row["nodes"]),
                cooling=row["cooling"],
                node_power_w=float(row["node_power_w"]),
                samples_per_s=float(row["samples_per_s"]) if row["samples_per_s"] else None,
                duration_s=float(row["duration_s"]),
                energy_kwh=float(row["energy_kwh"]),
                source=row["source"],
            )
            for row in csv.DictReader(lines)
        ]


@dataclass(frozen=True)
class PowerForecast:
    """A node's mean power, W, and its standard deviation."""

    power_w: float
    sd_w: float

    def interval_w(self, level: float) -> tuple[float, float]:
        """The least and the most."""
        reach = NormalDist().inv_cdf(0.5 + level / 2) * self.sd_w
        return self.power_w - reach, self.power_w + reach


def node_power(measured_w: float, throughput: float) -> PowerForecast:
    """From a node's power alone, and the throughput a GPU over the one measured with it."""
    power = FLOOR_W + (measured_w - FLOOR_W) * throughput
    sd = ((abs(1 - throughput) * FLOOR_SD_W) ** 2 + (_OWN_SD * power) ** 2) ** 0.5
    return PowerForecast(power, sd)


def validation() -> dict[str, Any]:
    """Runs of more nodes of the same benchmark and cooling, from the power of one node and the
    published throughputs.
    """
    rows = read_power()
    alone = {(row.benchmark, row.cooling): row for row in rows if row.nodes == 1}
    forecasts = [
        (row, node_power(one.node_power_w, row.samples_per_s_per_node / one.samples_per_s_per_node))
        for row in rows
        if (one := alone.get((row.benchmark, row.cooling))) and row is not one
    ]
    measured = [row.node_power_w for row, _ in forecasts]
    return {
        "errors": asdict(Errors.of([_error(row, each) for row, each in forecasts])),
        "intervals": {
            f"{level:.0%}": asdict(
                Coverage.of(
                    [
                        (low, each.power_w, high)
                        for _, each in forecasts
                        for low, high in [each.interval_w(level)]
                    ],
                    measured,
                )
            )
            for level in LEVELS
        },
        "predictions": [
            {
                "run": f"{row.benchmark}, {row.nodes} nodes, {row.cooling}",
                "measured_w": row.node_power_w,
                "median_w": each.power_w,
                "error": _error(row, each),
                "intervals_w": {f"{level:.0%}": list(each.interval_w(level)) for level in LEVELS},
            }
            for row, each in forecasts
        ],
    }


def _error(row: NodePower, forecast: PowerForecast) -> float:
    return forecast.power_w / row.node_power_w - 1
