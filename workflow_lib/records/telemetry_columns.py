"""Every column of the sampler's files. Of what it reads, this is all that the sampler, readers of
files and analysis know: a new reading is an entry here, its call in a source, and its measure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from workflow_lib.records import ranges
from workflow_lib.records.columns import LATER, Column, SampledColumn, columns
from workflow_lib.records.ranges import Range

_UNIX_TIME = Column("unix_time_s", float, "s", "wall clock of the node when the GPU was read")
_GPU = Column("gpu", int, "", "index of the GPU in its node")
#: how often those of GPU_SAMPLES are read that change slowly
SELDOM_S = 0.5
_temperature = partial(SampledColumn, values=Range(0, 200), positive=True)
_counter = partial(SampledColumn, kind="counter")
_throttled = partial(_counter, period_s=10.0)
_BYTES_ON_LINKS = "cumulative, over all NVLink or xGMI links"
_active = partial(
    SampledColumn,
    kind="mean_since_last",
    values=Range(0, 100),
    period_s=2.0,
    lacking={"amd": "AMD SMI does not tell how active the parts of a GPU are"},
)
_PCIE = {
    "nvidia": "the driver's counters of PCIe have 32 bits, which a link at full speed goes round "
    "in a fraction of a second, so that no reading tells how much went by",
    "amd": "AMD SMI has no byte counters of PCIe: its accumulated bandwidth has neither bytes nor "
    "directions, and its throughput call blocks for a second",
}

# fmt: off
#: telemetry/<node>.csv: what is read of every GPU at every tick; an empty field means that the
#: reading failed. What changes slowly is read at the first tick of every half second
GPU_SAMPLES = (
    _UNIX_TIME,
    _GPU,
    SampledColumn("power_w", float, "W",
        "board (NVIDIA) or package (AMD) power, as the driver averages it", positive=True),
    _temperature("temperature_c", float, "°C", "GPU core temperature; AMD: the hotspot's"),
    SampledColumn("sm_clock_mhz", float, "MHz", "streaming-multiprocessor or shader clock",
        values=Range(0, 10_000)),
    SampledColumn("memory_clock_mhz", float, "MHz", "memory clock",
        values=Range(0, 20_000), period_s=SELDOM_S),
    SampledColumn("utilisation_percent", float, "%",
        "share of time with a kernel running, as the driver says",
        values=Range(0, 100), period_s=SELDOM_S),
    SampledColumn("event_reasons", int, "", "NVML clocks-event-reasons bits",
        values=Range(0, 2**62)),
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
    _counter("energy_j", float, "J", "the driver's cumulative energy counter",
        values=Range(0, 1e13), positive=True, period_s=2.0),
    SampledColumn("energy_age_s", float, "s",
        "how old energy_j may be at most, if it was read just after the driver had renewed it; "
        "empty if it was read at any other moment", LATER,
        lacking={"amd": "AMD's energy counter is not read at its changes"}),
    _throttled("throttle_power_cap_s", float, "s", "cumulative time at the software power cap"),
    _throttled("throttle_sw_thermal_s", float, "s", "cumulative software thermal slowdown"),
    _throttled("throttle_hw_thermal_s", float, "s", "cumulative hardware thermal slowdown"),
    _throttled("throttle_power_brake_s", float, "s", "cumulative hardware power-brake slowdown",
        lacking={"amd": "AMD SMI does not tell a power brake from other causes"}),
    SampledColumn("power_instant_w", float, "W",
        "power over the latest, short window of the sensor", positive=True, period_s=30.0,
        lacking={"amd": "AMD SMI has one reading of power, which is power_w"}),
    _temperature("memory_temperature_c", float, "°C", "memory temperature", period_s=20.0),
    _temperature("edge_temperature_c", float, "°C", "AMD: temperature at the die's edge",
        period_s=20.0, lacking={"nvidia": "NVML does not tell the temperature at the die's edge"}),
    # Negative if the core is hotter than the limit.
    SampledColumn("thermal_margin_c", float, "°C",
        "how far the core is below the temperature of slowdown",
        values=Range(-200, 200), period_s=15.0),
    SampledColumn("gpu_fan_speed_percent", int, "%", "the GPU's own fan, of its full speed", LATER,
        period_s=30.0, lacking={"amd": "fans are not read through AMD SMI"}),
    # It hardly changes.
    SampledColumn("memory_used_bytes", int, "B", "device memory in use", period_s=10.0),
    # Seldom, because ranks read these counters between steps.
    _counter("gpu_link_received_bytes", int, "B", _BYTES_ON_LINKS, period_s=60.0),
    _counter("gpu_link_sent_bytes", int, "B", _BYTES_ON_LINKS, period_s=60.0),
    _counter("pcie_received_bytes", int, "B", "as pcie_sent_bytes", lacking=_PCIE),
    _counter("pcie_sent_bytes", int, "B",
        "empty, because PCIe's 32-bit counters wrap unseen; in files of earlier versions a number "
        "without meaning", lacking=_PCIE),
    _active("sm_active_percent", float, "%",
        "multiprocessors that had work, mean since the reading before", LATER),
    _active("sm_occupancy_percent", float, "%",
        "warps that were active, of those that fit; likewise", LATER),
    _active("tensor_active_percent", float, "%",
        "time in tensor operations of any kind; likewise", LATER),
    _active("dram_active_percent", float, "%",
        "memory bandwidth in use, of the highest; likewise", LATER),
    _active("pcie_sent_bytes_per_s", float, "B/s",
        "over PCIe from the GPU, mean since the reading before", LATER, values=Range(0, 1e12)),
    _active("pcie_received_bytes_per_s", float, "B/s",
        "over PCIe to the GPU; likewise", LATER, values=Range(0, 1e12)),
    SampledColumn("memory_power_w", float, "W",
        "power of the GPU's memory alone, as the driver tells", LATER,
        positive=True, period_s=2.0, lacking={"amd": "AMD SMI has no power of the memory alone"}),
    # Rare, and also reported as events.
    _counter("ecc_corrected_errors", int, "",
        "memory errors that were corrected, since the driver loaded", period_s=30.0),
    _counter("ecc_uncorrected_errors", int, "",
        "memory errors that could not be corrected, since the driver loaded", period_s=30.0),
    Column("read_cost_s", float, "s", "time that the row took to read"),
)

#: counters of GPU_COUNTERS that grow while a GPU is throttled, and what each tells
THROTTLES = {
    "throttle_power_cap_s": "power cap",
    "throttle_sw_thermal_s": "heat",
    "throttle_hw_thermal_s": "heat, by the hardware",
    "throttle_power_brake_s": "power brake",
}
#: what is less of the time than this is shown as 0.0 %
LEAST_THROTTLED_SHARE = 0.0005
#: a GPU is at work if kernels run for this percentage of the time or, where that is not told, if it
#: draws this share of its power limit. One that heat slows draws little, and kernels run on it
BUSY_PERCENT, _LOADED_SHARE = 50.0, 0.4


def is_at_work(gpu: Mapping[str, Any]) -> bool:
    """Whether a GPU of a record is at work: an idle one chooses its clock, which tells nothing."""
    busy_percent = gpu["utilisation_mean_percent"]
    if busy_percent is not None:
        return bool(busy_percent >= BUSY_PERCENT)
    power_w, limit_w = gpu["power_mean_w"], gpu["power_limit_w"]
    return bool(power_w and limit_w and power_w >= _LOADED_SHARE * limit_w)


def clock_mhz(gpu: Mapping[str, Any]) -> float | None:
    """The mean SM clock of a GPU of a record while kernels ran. It is that of all its time where
    utilisation is not told, and in records of before."""
    at_work: float | None = gpu.get("sm_clock_at_work_mhz")
    whole: float | None = gpu["sm_clock_mean_mhz"]
    return whole if at_work is None else at_work


#: telemetry/<node>-power.csv: power as the driver itself samples it, collected in batches
POWER_SAMPLES = (
    SampledColumn("driver_time_us", int, "µs", "the driver's timestamp, since the epoch",
        values=Range(0, 1e17)),
    _GPU,
    SampledColumn("power_mw", int, "mW", "board power",
        lacking={"amd": "AMD's driver keeps no power samples"}),
)

#: telemetry/<node>-events.csv: errors that the driver reports
GPU_EVENTS = (
    Column("unix_time_s", float, "s", "wall clock of the node when the event was seen"),
    _GPU,
    SampledColumn("event", str, "", "xid, ecc_corrected, ecc_uncorrected or lost",
        lacking={
            "amd": "AMD's driver has no Xid; what AMD SMI counts are the ECC errors",
            "simulated": "simulated GPUs have no driver that reports events",
        }),
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

_ALL_INTERFACES = "cumulative, over all Ethernet interfaces but loopback"
_ALL_PORTS = "cumulative, over all InfiniBand port counters"
#: of node power, the inlet and fans IPMI has a reading every 10 s
_of_host = partial(SampledColumn, gap_s=30.0)

#: telemetry/<node>-host.csv
HOST_SAMPLES = (
    Column("unix_time_s", float, "s", "wall clock of the node"),
    # The kernel counts CPU time in ticks, so a share may be above 100 % by a tick.
    _of_host("cpu_utilisation_percent", float, "%", "busy share of all CPUs since the row before",
        kind="mean_since_last", values=Range(0, 101)),
    _of_host("cpu_temperature_c", float, "°C", "hottest CPU package"),
    # It steps back.
    _of_host("cpu_energy_j", float, "J", "RAPL, all CPU packages, cumulative since sampling began",
        kind="counter", values=ranges.SIGNED),
    _of_host("memory_used_bytes", int, "B", "host memory in use (total − available)"),
    _of_host("network_received_bytes", int, "B", _ALL_INTERFACES, kind="counter"),
    _of_host("network_sent_bytes", int, "B", _ALL_INTERFACES, kind="counter"),
    _of_host("infiniband_received_bytes", int, "B", _ALL_PORTS, kind="counter"),
    _of_host("infiniband_sent_bytes", int, "B", _ALL_PORTS, kind="counter"),
    _of_host("node_power_w", float, "W", "power of the whole node, from IPMI or hwmon"),
    _of_host("inlet_temperature_c", float, "°C", "air at the node's inlet, from IPMI or hwmon"),
    _of_host("fan_speed_rpm", float, "1/min", "fastest fan, from IPMI or hwmon"),
    _of_host("other_jobs", int, "",
        "other Slurm jobs on the node, counted by control groups", LATER),
    _of_host("sampler_cpu_time_s", float, "s",
        "CPU time of the sampler itself, cumulative", LATER, kind="counter"),
)
