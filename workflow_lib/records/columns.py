"""Every column of every CSV file of a run: its name, type, unit and meaning. Of what the sampler
reads, this is also all that sampler, readers of files and analysis know.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from workflow_lib.records import ranges
from workflow_lib.records.ranges import Range


@dataclass(frozen=True)
class Column:
    """One column of a file or table: its name, type, unit and meaning."""

    name: str
    type: type
    unit: str
    description: str
    #: whether a later version added the column, so that older files lack it
    later: bool = False
    #: whether a row may have nothing in it; readers of other columns tell which they require
    optional: bool = False

    @property
    def range(self) -> Range:
        """The least and the most that a number in this column can be."""
        return ranges.range_of(self.name)


#: What a value stands for, and so how it is integrated over time: a moment (``point``: a straight
#: line to the next value); the mean since the reading before (``mean_since_last``: it holds for
#: the whole time since then, and the first reading has no value); or a sum so far (``counter``:
#: only the difference of two values means anything)
Kind = Literal["point", "mean_since_last", "counter"]

#: gaps of at most this long, or this many periods, whichever is longer, are interpolated
_BRIDGED_GAP_S = 5.0
_BRIDGED_PERIODS = 5.0


@dataclass(frozen=True)
class SampledColumn(Column):
    """A column that the sampler reads of a GPU or node, declared here once.

    The sampler takes its bounds and periods from this, readers of files the range of values, and
    analysis the rules of gaps and of integration.
    """

    kind: Kind = "point"
    #: the values that it can have; None if its name tells (records.ranges). Another value is no
    #: reading, but a fault, or a sentinel such as all bits set for "not applicable". Power of a
    #: GPU (in W) also has a bound of each GPU: gpu_models.most_power_w
    values: Range | None = None
    #: whether 0 is a driver's way to say that it does not know
    positive: bool = False
    #: how often it is read, in s, unless its call fills columns that are read more often; 0 if at
    #: every tick
    period_s: float = 0.0
    #: the longest gap that is interpolated, in s; None if it follows from the period
    gap_s: float | None = None
    #: source of telemetry → why it never has the column
    lacking: Mapping[str, str] = field(default_factory=dict)

    @property
    def range(self) -> Range:
        """The values that it can have, both ends included."""
        return self.values or super().range

    @property
    def bounds(self) -> tuple[float, float]:
        """What a driver's value must be above, and at most, to be a reading."""
        least, most = self.range
        return 0.0 if self.positive else math.nextafter(least, -math.inf), most

    def bridged_s(self, sample_rate_hz: float) -> float:
        """The longest gap between two readings that is interpolated, in s."""
        if self.gap_s is not None:
            return self.gap_s
        return max(_BRIDGED_GAP_S, _BRIDGED_PERIODS * max(self.period_s, 1 / sample_rate_hz))


def sampled(columns: Iterable[Column]) -> dict[str, SampledColumn]:
    """Those columns of a file that hold readings, by name."""
    return {column.name: column for column in columns if isinstance(column, SampledColumn)}


def columns(
    *rows: tuple[str, type, str, str]
    | tuple[str, type, str, str, bool]
    | tuple[str, type, str, str, bool, bool],
) -> tuple[Column, ...]:
    """Columns from tuples of name, type, unit, description, whether :data:`LATER` and whether
    :data:`OPTIONAL`.
    """
    return tuple(Column(*row) for row in rows)


LATER, OPTIONAL = True, True

_UNIX_TIME = Column("unix_time_s", float, "s", "wall clock of the node when the GPU was read")
_GPU = Column("gpu", int, "", "index of the GPU in its node")
_CELSIUS = Range(0, 200)
_BYTES_ON_LINKS = "cumulative, over all NVLink or xGMI links"
_PCIE = {
    "nvidia": "the driver's counters of PCIe have 32 bits, which a link at full speed goes round "
    "in a fraction of a second, so that no reading tells how much went by",
    "amd": "AMD SMI has no byte counters of PCIe: its accumulated bandwidth has neither bytes nor "
    "directions, and its throughput call blocks for a second",
}

#: telemetry/<node>.csv: what is read of every GPU at every tick; an empty field means that the
#: reading failed. What changes slowly is read at the first tick of every half second
GPU_SAMPLES = (
    _UNIX_TIME,
    _GPU,
    SampledColumn(
        "power_w",
        float,
        "W",
        "board (NVIDIA) or package (AMD) power, as the driver averages it",
        positive=True,
    ),
    SampledColumn(
        *("temperature_c", float, "°C", "GPU core temperature; AMD: the hotspot's"),
        values=_CELSIUS,
        positive=True,
    ),
    SampledColumn(
        *("sm_clock_mhz", float, "MHz", "streaming-multiprocessor or shader clock"),
        values=Range(0, 10_000),
    ),
    SampledColumn(
        *("memory_clock_mhz", float, "MHz", "memory clock"),
        values=Range(0, 20_000),
        period_s=0.5,
    ),
    SampledColumn(
        "utilisation_percent",
        float,
        "%",
        "share of time with a kernel running, as the driver says",
        values=Range(0, 100),
        period_s=0.5,
    ),
    SampledColumn(
        *("event_reasons", int, "", "NVML clocks-event-reasons bits"), values=Range(0, 2**62)
    ),
    Column("lateness_s", float, "s", "how long after its deadline the tick began"),
    Column("read_cost_s", float, "s", "time that reading this GPU took"),
)

#: telemetry/<node>-counters.csv: readings that take up to milliseconds, each on its own period. An
#: empty field means that the reading was not due or failed. In a GPU's first and last row all
#: readings are due. docs/explanation/measurement.md has the cost of each call, and how often the
#: driver renews the value.
GPU_COUNTERS = (
    _UNIX_TIME,
    _GPU,
    SampledColumn(
        *("energy_j", float, "J", "the driver's cumulative energy counter"),
        kind="counter",
        values=Range(0, 1e13),
        positive=True,
        period_s=2.0,
    ),
    SampledColumn(
        "energy_age_s",
        float,
        "s",
        "how old energy_j may be at most, if it was read just after the driver had renewed it; "
        "empty if it was read at any other moment",
        LATER,
        lacking={"amd": "AMD's energy counter is not read at its changes"},
    ),
    *(
        SampledColumn(*(name, float, "s", description), kind="counter", period_s=10.0, lacking=why)
        for name, description, why in (
            ("throttle_power_cap_s", "cumulative time at the software power cap", {}),
            ("throttle_sw_thermal_s", "cumulative software thermal slowdown", {}),
            ("throttle_hw_thermal_s", "cumulative hardware thermal slowdown", {}),
            (
                "throttle_power_brake_s",
                "cumulative hardware power-brake slowdown",
                {"amd": "AMD SMI does not tell a power brake from other causes"},
            ),
        )
    ),
    SampledColumn(
        *("power_instant_w", float, "W", "power over the latest, short window of the sensor"),
        positive=True,
        period_s=30.0,
        lacking={"amd": "AMD SMI has one reading of power, which is power_w"},
    ),
    SampledColumn(
        *("memory_temperature_c", float, "°C", "memory temperature"),
        values=_CELSIUS,
        positive=True,
        period_s=20.0,
    ),
    SampledColumn(
        *("edge_temperature_c", float, "°C", "AMD: temperature at the die's edge"),
        values=_CELSIUS,
        positive=True,
        period_s=20.0,
        lacking={"nvidia": "NVML does not tell the temperature at the die's edge"},
    ),
    SampledColumn(
        "thermal_margin_c",
        float,
        "°C",
        "how far the core is below the temperature of slowdown",
        # Negative if the core is hotter than the limit.
        values=Range(-200, 200),
        period_s=15.0,
    ),
    SampledColumn(
        *("gpu_fan_speed_percent", int, "%", "the GPU's own fan, of its full speed", LATER),
        period_s=30.0,
        lacking={"amd": "fans are not read through AMD SMI"},
    ),
    # It hardly changes.
    SampledColumn("memory_used_bytes", int, "B", "device memory in use", period_s=10.0),
    # Seldom, because ranks read these counters between steps.
    *(
        SampledColumn(name, int, "B", _BYTES_ON_LINKS, kind="counter", period_s=60.0)
        for name in ("gpu_link_received_bytes", "gpu_link_sent_bytes")
    ),
    *(
        SampledColumn(name, int, "B", description, kind="counter", lacking=_PCIE)
        for name, description in (
            ("pcie_received_bytes", "as pcie_sent_bytes"),
            (
                "pcie_sent_bytes",
                "empty, because PCIe's 32-bit counters wrap unseen; in files of earlier versions a "
                "number without meaning",
            ),
        )
    ),
    # Rare, and also reported as events.
    *(
        SampledColumn(
            *(
                f"ecc_{which}_errors",
                int,
                "",
                f"memory errors that {what}, since the driver loaded",
            ),
            kind="counter",
            period_s=30.0,
        )
        for which, what in (
            ("corrected", "were corrected"),
            ("uncorrected", "could not be corrected"),
        )
    ),
    Column("read_cost_s", float, "s", "time that the row took to read"),
)

#: telemetry/<node>-power.csv: power as the driver itself samples it, collected in batches
POWER_SAMPLES = (
    SampledColumn(
        *("driver_time_us", int, "µs", "the driver's timestamp, since the epoch"),
        values=Range(0, 1e17),
    ),
    _GPU,
    SampledColumn(
        *("power_mw", int, "mW", "board power"),
        lacking={"amd": "AMD's driver keeps no power samples"},
    ),
)

#: telemetry/<node>-events.csv: errors that the driver reports
GPU_EVENTS = (
    Column("unix_time_s", float, "s", "wall clock of the node when the event was seen"),
    _GPU,
    SampledColumn(
        *("event", str, "", "xid, ecc_corrected, ecc_uncorrected or lost"),
        lacking={
            "amd": "AMD's driver has no Xid; what AMD SMI counts are the ECC errors",
            "simulated": "simulated GPUs have no driver that reports events",
        },
    ),
    Column("code", int, "", "the number of an Xid; empty for other events"),
)

#: telemetry/<node>-blocks.csv, only if sampling rates alternate
SAMPLER_BLOCKS = columns(
    ("started_unix_s", float, "s", "wall clock of the node when the block began"),
    ("ended_unix_s", float, "s", "wall clock of the node when the block ended"),
    ("sample_rate_hz", float, "Hz", "rate of GPU samples; 0 if nothing was read"),
    ("ticks", int, "", "ticks that were sampled"),
    ("late_ticks", int, "", "those of them that began over half a period late"),
    ("missed_ticks", int, "", "ticks that were left out because the next one was due"),
    ("cpu_time_s", float, "s", "CPU time of the sampler"),
    ("memory_bytes", int, "B", "its resident memory at the end of the block"),
)

#: of node power, the inlet and fans IPMI has a reading every 10 s
_HOST_GAP_S = 30.0
_ALL_INTERFACES = "cumulative, over all Ethernet interfaces but loopback"
_ALL_PORTS = "cumulative, over all InfiniBand port counters"


def _of_host(
    name: str,
    type: type,
    unit: str,
    description: str,
    later: bool = False,
    *,
    kind: Kind = "point",
    values: Range | None = None,
) -> SampledColumn:
    return SampledColumn(
        name, type, unit, description, later, kind=kind, values=values, gap_s=_HOST_GAP_S
    )


#: telemetry/<node>-host.csv
HOST_SAMPLES = (
    Column("unix_time_s", float, "s", "wall clock of the node"),
    _of_host(
        "cpu_utilisation_percent",
        float,
        "%",
        "busy share of all CPUs since the row before",
        kind="mean_since_last",
        # The kernel counts CPU time in ticks, so a share may be above 100 % by a tick.
        values=Range(0, 101),
    ),
    _of_host("cpu_temperature_c", float, "°C", "hottest CPU package"),
    _of_host(
        *("cpu_energy_j", float, "J", "RAPL, all CPU packages, cumulative since sampling began"),
        kind="counter",
        # It steps back.
        values=ranges.SIGNED,
    ),
    _of_host("memory_used_bytes", int, "B", "host memory in use (total − available)"),
    _of_host("network_received_bytes", int, "B", _ALL_INTERFACES, kind="counter"),
    _of_host("network_sent_bytes", int, "B", _ALL_INTERFACES, kind="counter"),
    _of_host("infiniband_received_bytes", int, "B", _ALL_PORTS, kind="counter"),
    _of_host("infiniband_sent_bytes", int, "B", _ALL_PORTS, kind="counter"),
    _of_host("node_power_w", float, "W", "power of the whole node, from IPMI or hwmon"),
    _of_host("inlet_temperature_c", float, "°C", "air at the node's inlet, from IPMI or hwmon"),
    _of_host("fan_speed_rpm", float, "1/min", "fastest fan, from IPMI or hwmon"),
    _of_host(
        "other_jobs", int, "", "other Slurm jobs on the node, counted by control groups", LATER
    ),
    _of_host(
        *("sampler_cpu_time_s", float, "s", "CPU time of the sampler itself, cumulative", LATER),
        kind="counter",
    ),
)

#: steps/rank<n>.csv
STEPS = columns(
    ("step", int, "", "from 0, warm-up included"),
    ("phase", str, "", "warmup or measured"),
    ("started_unix_s", float, "s", "wall clock of the node at the start of the step"),
    ("prefill_ended_unix_s", float, "s", "the same once all prompts were read; empty in training"),
    ("ended_unix_s", float, "s", "wall clock of the node once the step's work had ended"),
    (
        "loss",
        float,
        "nat",
        "mean cross-entropy over the global batch; empty where not known here",
        not LATER,
        OPTIONAL,
    ),
    ("tokens", int, "", "tokens that this rank's replica trained on, or read and generated"),
    (
        "memory_allocated_bytes",
        int,
        "B",
        "allocated at the end of the step; host RSS on a CPU",
        not LATER,
        OPTIONAL,
    ),
    (
        "memory_peak_bytes",
        int,
        "B",
        "highest so far; host peak RSS on a CPU",
        not LATER,
        OPTIONAL,
    ),
    (
        "memory_reserved_bytes",
        int,
        "B",
        "highest so far that torch's allocator held, cached blocks included; empty on a CPU",
        LATER,
        OPTIONAL,
    ),
    (
        "memory_used_bytes",
        int,
        "B",
        "in use on the whole GPU at the end of the step, as its driver counts it; empty on a CPU",
        LATER,
        OPTIONAL,
    ),
    (
        "allocator_retries",
        int,
        "",
        "how often torch's allocator found no memory, gave blocks back and tried again, since the "
        "rank began; empty on a CPU",
        LATER,
        OPTIONAL,
    ),
    (
        "allocator_frees",
        int,
        "",
        "how many blocks it gave back to the driver, since the rank began; empty on a CPU",
        LATER,
        OPTIONAL,
    ),
    (
        "expert_choices",
        int,
        "",
        "how often this rank's routers chose an expert for a token; empty in a dense model",
        LATER,
        OPTIONAL,
    ),
    (
        "dropped_choices",
        int,
        "",
        "those of them that were dropped because the expert had its share already",
        LATER,
        OPTIONAL,
    ),
)
