"""Power of nodes at the wall: a constant floor, and the rest in proportion to throughput.

``P(n) = F + (P(1) − F) · u``, where u is the throughput per GPU on n nodes divided by that on one
node. A GPU that does not compute waits in collectives, at the power of waiting; the rest of the
node takes the same power. This holds within one kind of cooling: fans of air-cooled nodes take a
kilowatt more for equal work.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from importlib import resources
from statistics import NormalDist
from typing import Any

from research.projection.metrics import Coverage, Errors
from workflow_lib.projection.kinds import LEVELS

_FILE = resources.files("research.projection") / "data" / "power.csv"

#: The floor was read from ten runs on one node (MLPerf Training v4.0, Llama 2 70B LoRA, immersion
#: cooled): in each run 7 to 9 readings of 2 s lie at 2.8 to 2.9 kW, while the node pauses, and the
#: next lies near 3.5 kW. This is the mean of the lowest percent of each run's readings. It is not
#: known whether a GPU that waits in a collective takes more: its level of waiting is uncertain by
#: 6 % of 700 W, which is 340 W for eight.
FLOOR_W, FLOOR_SD_W = 2880.0, 340.0
#: relative standard deviation of a run's mean power about the line, because throughputs of short
#: runs are uncertain
_OWN_SD = 0.03


@dataclass(frozen=True)
class NodePower:
    """Measured runs of a benchmark. Power is a node's mean, in W; energy is all nodes', in kWh."""

    benchmark: str
    nodes: int
    cooling: str
    node_power_w: float
    #: over the whole run, as the power is; None if the source does not state it
    samples_per_s: float | None
    duration_s: float
    energy_kwh: float
    source: str

    @property
    def samples_per_s_per_node(self) -> float:
        """Throughput per node in samples/s. Raises ValueError if it is not known."""
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
        """The lower and upper end of an interval with coverage ``level``, in W."""
        reach = NormalDist().inv_cdf(0.5 + level / 2) * self.sd_w
        return self.power_w - reach, self.power_w + reach


def node_power(measured_w: float, throughput: float) -> PowerForecast:
    """Forecast a node's power from the power of one node alone, in W. ``throughput`` is the
    throughput per GPU divided by the one measured with that power."""
    power = FLOOR_W + (measured_w - FLOOR_W) * throughput
    sd = ((abs(1 - throughput) * FLOOR_SD_W) ** 2 + (_OWN_SD * power) ** 2) ** 0.5
    return PowerForecast(power, sd)


def validation() -> dict[str, Any]:
    """Test the forecast: runs on several nodes, predicted from the power of one node with the same
    benchmark and cooling, and from published throughputs."""
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
