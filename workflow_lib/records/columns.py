"""Every column of every CSV file of a run: its name, type, unit and meaning.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column of a file or table: its name, type, unit and meaning."""

    name: str
    type: type
    unit: str
    description: str
    #: whether a file may lack the column: a later version added it, or not every trainer tells it
    later: bool = False


def columns(
    *rows: tuple[str, type, str, str] | tuple[str, type, str, str, bool],
) -> tuple[Column, ...]:
    """Columns from tuples of name, type, unit, description, and :data:`LATER` if added later."""
    return tuple(Column(*row) for row in rows)


LATER = True


#: telemetry/<node>.csv: what is read of every GPU at every tick; an empty field means that the
#: reading failed
GPU_SAMPLES = columns(
    ("unix_time_s", float, "s", "wall clock of the node when the GPU was read"),
    ("gpu", int, "", "index of the GPU in its node"),
    ("power_w", float, "W", "board (NVIDIA) or package (AMD) power, as the driver averages it"),
    ("temperature_c", float, "°C", "GPU core temperature; AMD: the hotspot's"),
    ("sm_clock_mhz", float, "MHz", "streaming-multiprocessor or shader clock"),
    ("memory_clock_mhz", float, "MHz", "memory clock"),
    ("utilisation_percent", float, "%", "share of time with a kernel running, as the driver says"),
    ("event_reasons", int, "", "NVML clocks-event-reasons bits"),
    ("lateness_s", float, "s", "how long after its deadline the tick began"),
    ("read_cost_s", float, "s", "time that reading this GPU took"),
)

#: telemetry/<node>-counters.csv: readings that take up to milliseconds, each on its own period. An
#: empty field means that the reading was not due or failed. In a GPU's first and last row all
#: readings are due.
GPU_COUNTERS = columns(
    ("unix_time_s", float, "s", "wall clock of the node when the GPU was read"),
    ("gpu", int, "", "index of the GPU in its node"),
    ("energy_j", float, "J", "the driver's cumulative energy counter"),
    (
        "energy_age_s",
        float,
        "s",
        "how old energy_j may be at most, if it was read just after the driver had renewed it; "
        "empty if it was read at any other moment",
        LATER,
    ),
    ("throttle_power_cap_s", float, "s", "cumulative time at the software power cap"),
    ("throttle_sw_thermal_s", float, "s", "cumulative software thermal slowdown"),
    ("throttle_hw_thermal_s", float, "s", "cumulative hardware thermal slowdown"),
    ("throttle_power_brake_s", float, "s", "cumulative hardware power-brake slowdown"),
    ("power_instant_w", float, "W", "power over the latest, short window of the sensor"),
    ("memory_temperature_c", float, "°C", "memory temperature"),
    ("edge_temperature_c", float, "°C", "AMD: temperature at the die's edge"),
    ("thermal_margin_c", float, "°C", "how far the core is below the temperature of slowdown"),
    ("gpu_fan_speed_percent", int, "%", "the GPU's own fan, of its full speed", LATER),
    ("memory_used_bytes", int, "B", "device memory in use"),
    ("gpu_link_received_bytes", int, "B", "cumulative, over all NVLink or xGMI links"),
    ("gpu_link_sent_bytes", int, "B", "cumulative, over all NVLink or xGMI links"),
    ("pcie_received_bytes", int, "B", "as pcie_sent_bytes"),
    (
        "pcie_sent_bytes",
        int,
        "B",
        "empty, because PCIe's 32-bit counters wrap unseen; in files of earlier versions a number "
        "without meaning",
    ),
    ("ecc_corrected_errors", int, "", "memory errors that were corrected, since the driver loaded"),
    (
        "ecc_uncorrected_errors",
        int,
        "",
        "memory errors that could not be corrected, since the driver loaded",
    ),
    ("read_cost_s", float, "s", "time that the row took to read"),
)

#: telemetry/<node>-power.csv: power as the driver itself samples it, collected in batches
POWER_SAMPLES = columns(
    ("driver_time_us", int, "µs", "the driver's timestamp, since the epoch"),
    ("gpu", int, "", "index of the GPU in its node"),
    ("power_mw", int, "mW", "board power"),
)

#: telemetry/<node>-events.csv: errors that the driver reports
GPU_EVENTS = columns(
    ("unix_time_s", float, "s", "wall clock of the node when the event was seen"),
    ("gpu", int, "", "index of the GPU in its node"),
    ("event", str, "", "xid, ecc_corrected, ecc_uncorrected or lost"),
    ("code", int, "", "the number of an Xid; empty for other events"),
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

#: telemetry/<node>-host.csv
HOST_SAMPLES = columns(
    ("unix_time_s", float, "s", "wall clock of the node"),
    ("cpu_utilisation_percent", float, "%", "busy share of all CPUs since the row before"),
    ("cpu_temperature_c", float, "°C", "hottest CPU package"),
    ("cpu_energy_j", float, "J", "RAPL, all CPU packages, cumulative since sampling began"),
    ("memory_used_bytes", int, "B", "host memory in use (total − available)"),
    ("network_received_bytes", int, "B", "cumulative, over all Ethernet interfaces but loopback"),
    ("network_sent_bytes", int, "B", "cumulative, over all Ethernet interfaces but loopback"),
    ("infiniband_received_bytes", int, "B", "cumulative, over all InfiniBand port counters"),
    ("infiniband_sent_bytes", int, "B", "cumulative, over all InfiniBand port counters"),
    ("node_power_w", float, "W", "power of the whole node, from IPMI or hwmon"),
    ("inlet_temperature_c", float, "°C", "air at the node's inlet, from IPMI or hwmon"),
    ("fan_speed_rpm", float, "1/min", "fastest fan, from IPMI or hwmon"),
    ("other_jobs", int, "", "other Slurm jobs on the node, counted by control groups", LATER),
    ("sampler_cpu_time_s", float, "s", "CPU time of the sampler itself, cumulative", LATER),
)
