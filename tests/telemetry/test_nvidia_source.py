"""What the NVIDIA source makes of what the driver says, through the real binding, in a time that
passes as the test says.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict

import pytest

from tests.telemetry.nvml import ACTIVITY
from workflow_lib.records.columns import sampled
from workflow_lib.records.telemetry_columns import GPU_COUNTERS
from workflow_lib.telemetry.devices.nvidia import NvidiaSource
from workflow_lib.telemetry.devices.nvml import slurm_gpus
from workflow_lib.telemetry.polling import Poll, PolledSource
from workflow_lib.telemetry.source import (
    READINGS,
    TelemetryError,
    UnreadableError,
    declared_lacking,
)

#: nvmlEventType
ECC_CORRECTED, ECC_UNCORRECTED, PSTATE, XID = 1, 2, 4, 8
#: where a reading fails of one GPU alone, and what NVML says of a GPU that fell off the bus
ONLY_1, LOST = "on GPU 1 only", "GPU is lost"
EIGHT = {"count": "8", "power": "300000", **{f"uuid_{gpu}": f"GPU-{gpu}" for gpu in range(8)}}


def test_every_combination_of_event_bits_survives_unchanged(played):
    with played.source(reasons="count 0 1 9") as source:  # from 0 up, one a second
        seen = [source.read(0, played.set_time(bits))["event_reasons"] for bits in range(512)]
    assert seen == list(range(512))


@pytest.mark.parametrize(
    ("minors", "order", "seen"),
    [
        ("01", None, ["GPU-bbbb-1", "GPU-aaaa-0"]),
        ("10", "bus", ["GPU-bbbb-1", "GPU-aaaa-0"]),
        ("10", "files", ["GPU-aaaa-0", "GPU-bbbb-1"]),
        ("53", "files", ["GPU-aaaa-0", "GPU-bbbb-1"]),
    ],
)
def test_slurms_numbers_are_of_the_bus_or_of_device_files(played, minors, order, seen):
    played.say(minor_0=minors[0], minor_1=minors[1])
    assert slurm_gpus("1,0", order) == seen


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ("0", {"minor_0": "1", "minor_1": "0"}),  # either order is possible
        ("2", {"minor_0": "0", "minor_1": "1"}),
        ("GPU-aaaa-0", {"minor_0": "0", "minor_1": "1"}),
        ("0", {}),
    ],
)
def test_a_gpu_that_slurms_number_does_not_tell_is_refused(played, numbers, says):
    played.say(**says)
    with pytest.raises(TelemetryError):
        slurm_gpus(numbers, None)


def lacking(source: NvidiaSource) -> dict[str, str]:
    """What it cannot tell, besides what is never read through NVML."""
    never = declared_lacking("nvidia")
    return {name: why for name, why in source.missing.items() if why != never.get(name)}


# --- what cannot be read ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "columns"),
    [
        ("temperature", ["temperature_c"]),
        ("clock_sm", ["sm_clock_mhz"]),
        ("clock_memory", ["memory_clock_mhz"]),
        ("utilisation", ["utilisation_percent"]),
        ("reasons", ["event_reasons"]),
        ("energy", ["energy_j"]),
        ("used", ["memory_used_bytes"]),
        ("margin", ["thermal_margin_c"]),
        ("fan", ["gpu_fan_speed_percent"]),
        ("ecc_corrected", ["ecc_corrected_errors"]),
        ("ecc_uncorrected", ["ecc_uncorrected_errors"]),
        ("field_74", ["throttle_power_cap_s"]),
        ("field_82", ["memory_temperature_c"]),
        ("field_138", ["gpu_link_sent_bytes"]),
        ("field_139", ["gpu_link_received_bytes"]),
        ("field_185", ["memory_power_w"]),
        ("field_186", ["power_instant_w"]),
        ("samples_every", ["power_mw"]),
    ],
)
def test_an_unsupported_reading_is_missing_with_its_reason(played, key, columns):
    with played.source(**{key: None}) as source:
        assert lacking(source) == dict.fromkeys(columns, "Not Supported")
        read = {**source.read(0, 0.0), **source.read_counters(0, 0.0, everything=True)}
        read |= dict.fromkeys(ACTIVITY)  # nothing to tell at the first reading
        assert not read.keys() & set(columns)
        # energy_age_s is filled where the counter is read at its changes.
        never = {*declared_lacking("nvidia"), "energy_age_s"}
        assert read.keys() | never | set(columns) == READINGS.keys() | set(columns)
        assert source.errors == {}


def test_activity_is_the_mean_since_the_reading_before(played):
    # Of a square wave of 4 s, the mean of its last second and of the whole.
    with played.source(gpm_5="square 0 80 4") as source:
        means = [
            source.read_counters(0, played.set_time(moment), everything=True)
            for moment in (2.0, 3.0, 7.0)
        ]
    assert [each.get("tensor_active_percent") for each in means] == [0.0, 80.0, 40.0]
    assert {name: means[2][name] for name in ACTIVITY} == {**ACTIVITY, "tensor_active_percent": 40}


def test_a_gpu_without_gpm_says_so_once_for_all_its_metrics(played):
    with played.source(gpm_2=None) as source:
        assert lacking(source).keys() == ACTIVITY.keys()
    with played.source(gpm_10=None) as source:
        source.read_counters(0, played.set_time(2.0), everything=True)
        assert source.errors == {"dram_active_percent: Not Supported": 1}


def test_links_are_not_taken_for_link_0_alone(played):
    with played.source(field_138_scope="0", field_139_scope="0") as source:
        assert source.missing["gpu_link_sent_bytes"] == "Invalid Argument"


def test_a_reading_that_only_one_gpu_lacks_names_it(played):
    with played.source(energy_error_1="3") as source:
        assert lacking(source) == {"energy_j": f"{ONLY_1}: Not Supported"}
        assert source.energy_in_steps == (0,)
        assert source.read_energy(0) == 123456.789
        assert source.read_counters(0, 0.0, everything=True)["energy_j"] == 123456.789
        assert "energy_j" not in source.read_counters(1, 0.0, everything=True)


def test_a_gpu_without_power_is_refused(played):
    with (
        pytest.raises(TelemetryError, match="Not Supported"),
        played.source(power_1=None),
    ):
        pass


def test_what_the_driver_does_not_tell_of_a_gpu_is_null(played):
    told = (
        "serial vbios bus_0 pcie_generation pcie_width limit limit_default limit_max clock_sm_max "
        "clock_memory_max temperature_slowdown temperature_shutdown ecc mig persistence"
    )
    with played.source(**dict.fromkeys(told.split())) as source:
        known = {key: value for key, value in source.gpus[0].items() if value is not None}
    assert known == {
        "name": "NVIDIA H200",
        "uuid": "GPU-aaaa-0",
        "driver_version": "580.65.06",
        "index": 0,
        "package": 0,
        "reports_power": True,
    }


def test_power_limits_are_those_that_are_in_force_when_asked_for(played):
    with played.source() as source:
        assert source.power_limits_w() == [700.0, 700.0]
        played.library.nvmlDeviceSetPowerManagementLimit(source._handles[1], 650_000)
        assert source.power_limits_w() == [700.0, 650.0]
    with played.source(limit=None) as source:
        assert source.power_limits_w() == [None, None]


@pytest.mark.parametrize(
    ("key", "value", "column", "said"),
    [
        ("temperature", "0", "temperature_c", "0"),
        ("power_0", "0", "power_w", "0.0"),
        ("clock_sm", "4294967295", "sm_clock_mhz", "4294967295"),
        ("utilisation", "4294967295", "utilisation_percent", "4294967295"),
        ("reasons", str(2**64 - 1), "event_reasons", str(2**64 - 1)),
        ("field_82", "0", "memory_temperature_c", "0"),
        ("field_186", "4294967295", "power_instant_w", "4294967.295"),
        ("used", str(2**64 - 1), "memory_used_bytes", str(2**64 - 1)),
        ("energy", str(2**64 - 1), "energy_j", str((2**64 - 1) / 1e3)),
    ],
)
def test_a_value_that_no_gpu_has_is_null_and_counted(played, key, value, column, said):
    with played.source() as source:
        played.say(**{key: value})
        read = {**source.read(0, 0.0), **source.read_counters(0, 0.0, everything=True)}
        assert [name for name in read if read[name] is None] == [column]
        assert source.errors == {f"{column}: the driver returned {said}": 1}


def answering(*first: UnreadableError | None) -> PolledSource:
    """A source whose only GPU has these temperatures, and then 35 °C."""
    answers = itertools.chain(first, itertools.repeat(35))
    poll = Poll(("temperature_c",), lambda: (next(answers),))
    return PolledSource("any", [{"name": "GPU", "reports_power": False}], [[poll]], failures=())


@pytest.mark.parametrize(("faults", "missing"), [(1, False), (2, True)])
def test_a_passing_fault_at_the_start_costs_no_column(faults, missing):
    source = answering(*[UnreadableError("busy")] * faults)
    assert source.missing.get("temperature_c") == ("busy" if missing else None)
    assert source.read(0, 0.0) == ({} if missing else {"temperature_c": 35})
    assert source.errors == {}


def test_a_reading_that_has_nothing_yet_is_neither_missing_nor_an_error():
    source = answering(None, None)
    assert "temperature_c" not in source.missing
    assert [source.read(0, 0.0), source.read(0, 0.1)] == [{}, {"temperature_c": 35}]
    assert source.errors == {}


def test_an_unknown_type_of_value_is_not_guessed(played):
    with played.source(field_82_type="7") as source:
        assert lacking(source).keys() == {"memory_temperature_c"}
        assert source.missing["memory_temperature_c"].endswith("type 7")


# --- where the slowdown counters are ------------------------------------------------------------

LATE = {"field_269": "9000000000", "field_270": "0", "field_271": "7000000000"}


def test_slowdown_counters_are_found_where_later_drivers_have_them(played):
    # There 251 to 253 are power-smoothing settings: small numbers of another type.
    settings = {f"field_{field}_type": "1" for field in (251, 252, 253)}
    with played.source(driver="580.95.05", field_251="1", **settings, **LATE) as source:
        read = source.read_counters(0, 0.0)
        assert (read["throttle_sw_thermal_s"], read["throttle_power_brake_s"]) == (9.0, 7.0)
        assert lacking(source) == {}


@pytest.mark.parametrize(
    ("driver", "seconds"), [("580.65.06", 2.5), ("580.82.07", 9.0), ("590.44", 9.0)]
)
def test_the_driver_version_decides_where_both_sets_of_ids_answer(played, driver, seconds):
    with played.source(driver=driver, **LATE) as source:
        assert source.read_counters(0, 0.0)["throttle_sw_thermal_s"] == seconds


def test_a_driver_without_slowdown_counters_has_the_power_cap_alone(played):
    none = dict.fromkeys(["field_251", "field_252", "field_253"])
    with played.source(driver="550.90", **none) as source:
        read = source.read_counters(0, 0.0)
        assert read["throttle_power_cap_s"] == 5.0
        assert lacking(source) == dict.fromkeys(
            ["throttle_sw_thermal_s", "throttle_hw_thermal_s", "throttle_power_brake_s"],
            source.missing["throttle_hw_thermal_s"],
        )
        assert "550.90" in source.missing["throttle_hw_thermal_s"]
        assert not read.keys() & source.missing.keys()


# --- what is read seldom ---


def test_what_changes_slowly_is_read_every_half_second_and_power_at_every_tick(played):
    with played.source() as source:
        ticks = [source.read(0, played.set_time(tick / 10)).keys() for tick in range(21)]
    # The mean temperature of a run needs as many readings as its mean power.
    every = {"power_w", "sm_clock_mhz", "event_reasons", "temperature_c"}
    seldom = {"memory_clock_mhz", "utilisation_percent"}
    for tick, columns in enumerate(ticks):
        assert columns == (every | seldom if tick % 5 == 0 else every)


def test_a_clock_that_was_set_back_stops_no_seldom_reading(played):
    with played.source() as source:
        source.read(0, played.set_time(0))
        assert "memory_clock_mhz" in source.read(0, played.set_time(-3600))
        assert "memory_clock_mhz" not in source.read(0, played.set_time(-3599.9))


# --- periods ------------------------------------------------------------------------------------


def test_costly_readings_come_on_periods_of_their_own_and_not_together(played):
    seconds: dict[tuple[int, str], list[int]] = defaultdict(list)
    with played.source(**EIGHT) as source:
        for second, gpu in itertools.product(range(121), range(8)):
            for column in source.read_counters(gpu, played.set_time(second + gpu / 8)):
                seconds[gpu, column].append(second)
    periods = {
        name: column.period_s
        for name, column in sampled(GPU_COUNTERS).items()
        if name not in source.missing and name != "energy_age_s"
    }
    assert (periods["throttle_power_cap_s"], periods["memory_used_bytes"]) == (10, 10)
    assert {"energy_j"} == periods.keys() - {column for _, column in seconds}
    for (_, column), at in seconds.items():
        gaps = [b - a for a, b in itertools.pairwise(at)]
        # All are read at the start; the first period is cut short, so that they spread.
        assert at[0] == 0
        assert gaps[0] <= periods[column]
        assert set(gaps[1:]) == {periods[column]}
    memories = Counter(
        second for gpu in range(8) for second in seconds[gpu, "memory_temperature_c"][1:]
    )
    assert max(memories.values()) <= 2


def test_everything_is_read_when_asked_for(played):
    with played.source() as source:
        first = source.read_counters(0, played.set_time(0))
        assert source.read_counters(0, played.set_time(0.05)) == {}
        everything = source.read_counters(0, played.set_time(0.05), everything=True)
        assert everything == {**first, "energy_j": 123456.789}


def test_a_clock_that_was_set_back_stops_no_counter(played):
    with played.source() as source:
        source.read_counters(0, played.set_time(0))
        source.read_counters(0, played.set_time(0), everything=True)
        assert source.read_counters(0, played.set_time(-3600)).keys() >= {"memory_used_bytes"}
        assert source.read_counters(0, played.set_time(-3599)) == {}


def test_pcies_counters_are_not_read_because_they_tell_no_amount(played):
    with played.source() as source:
        assert not source.read_counters(0, 0.0).keys() & {"pcie_sent_bytes", "pcie_received_bytes"}
        for column in ("pcie_sent_bytes", "pcie_received_bytes"):
            assert "have 32 bits" in source.missing[column]


# --- the driver's own samples -------------------------------------------------------------------


@pytest.mark.parametrize("again", ["0", "1"])
def test_driver_samples_are_complete_and_come_once(played, again):
    # Also where the driver does not heed which one was seen last.
    # 100 W + 1 W/s: the sample at t is the mean of the 20 ms before, 100 W + 1 W/s · (t − 10 ms).
    with played.source(
        samples_again=again, power_0="ramp 100000 1000", power_1="square 100000 700000 0.08"
    ) as source:
        collected: list[list[tuple[int, int]]] = [[], []]
        for at in (2, 2.004, 2.02, 3.9, 6.27, 6.27, 8.5):
            played.set_time(at)
            for gpu in (0, 1):
                collected[gpu] += source.power_samples(gpu)
        assert source.errors == {}
    epoch_us = round(played.epoch_s * 1e6)
    assert collected[0] == [
        (epoch_us + 20_000 * i, 100_000 + 20 * i - 10) for i in range(1, 425 + 1)
    ]
    halves = itertools.cycle([100_000, 100_000, 700_000, 700_000])
    assert collected[1] == [
        (epoch_us + 20_000 * i, power_mw)
        for i, power_mw in zip(range(1, 426), halves, strict=False)
    ]


def test_samples_that_the_driver_no_longer_has_are_lost(played):
    with played.source() as source:
        source.power_samples(0)
        played.set_time(10)
        assert len(source.power_samples(0)) == 119


def test_no_new_sample_is_no_failure(played):
    with played.source() as source:  # at 0 s there is none yet
        assert source.power_samples(0) == []
        assert (lacking(source), source.errors) == ({}, {})


def test_driver_timestamps_that_do_not_count_from_the_epoch_are_refused(played):
    played.set_time(100)
    # As if they counted from when the machine started.
    with played.source(samples_offset="-1789999000") as source:
        assert lacking(source).keys() == {"power_mw"}
        assert "-1789999000 s off" in lacking(source)["power_mw"]
        assert source.power_samples(0) == []


def test_samples_that_only_one_gpu_lacks_are_collected_from_the_other(played):
    played.set_time(100)
    with played.source(samples_error_1="3") as source:
        assert lacking(source) == {}
        assert source.errors == {f"power_mw: {ONLY_1}: Not Supported": 1}
        assert (len(source.power_samples(0)), source.power_samples(1)) == (119, [])


def test_samples_go_on_after_a_clock_was_set_back(played):
    with played.source() as source:
        played.set_time(100)
        source.power_samples(0)
        played.set_time(40)
        # What is left of the second before; the driver has stamped them with the new time.
        assert len(source.power_samples(0)) == 50
        played.set_time(42)
        assert len(source.power_samples(0)) == 100


def test_a_sample_that_no_gpu_draws_is_left_out_and_counted(played):
    with played.source(power_0="square 100000 4000000000 0.08") as source:
        played.set_time(0.8)
        assert {power_mw for _, power_mw in source.power_samples(0)} == {100_000}
        ((said, count),) = source.errors.items()
        assert (said.partition(":")[0], count) == ("power_mw", 20)


def test_samples_that_fail_in_mid_run_are_counted(played):
    with played.source(samples_error="999 1 3") as source:
        counts = [len(source.power_samples(0)) for at in (0.5, 2, 4) if played.set_time(at)]
        assert counts == [25, 0, 119]
        assert source.errors == {"power_mw: Unknown Error": 1}


# --- events -------------------------------------------------------------------------------------


def test_events_are_told_once_with_their_gpu_and_code(played, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    told = (
        f"0 {XID} 79 1",
        f"1 {ECC_CORRECTED} 0 2",
        f"1 {PSTATE} 3 2",
        f"1 {ECC_UNCORRECTED} 9 2",
        f"1 {XID} 48 2",
    )
    with played.source(*told) as source:
        assert source.events() == []
        played.set_time(1.5)
        assert source.events() == [(1, "xid", 79)]
        assert source.events() == []
        played.set_time(2.5)
        assert source.events() == [
            (0, "ecc_corrected", None),
            (0, "ecc_uncorrected", None),
            (0, "xid", 48),
        ]
        assert lacking(source) == {}


def test_only_events_that_the_gpu_supports_are_asked_for(played):
    told = (f"0 {ECC_CORRECTED} 0 0", f"0 {XID} 79 0")
    with played.source(*told, events_types=str(XID | PSTATE)) as source:
        assert source.events() == [(0, "xid", 79)]


def test_events_that_nobody_asked_for_are_left_out(played, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with played.source("0 0 5 0", "1 0 5 0", f"0 {XID} 79 0") as source:
        assert source.events() == [(0, "xid", 79)]


def test_a_burst_of_events_is_told_in_parts(played):
    with played.source(*[f"0 {XID} {number} 0" for number in range(150)]) as source:
        assert [len(source.events()) for _ in range(3)] == [100, 50, 0]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"register_error": "4"}, "Insufficient Permissions"),
        ({"events_set_error": "4"}, "Insufficient Permissions"),
        ({"events_types": None}, "Not Supported"),
        ({"events_types": "4"}, "Xid"),
    ],
)
def test_events_that_nobody_tells_are_missing(played, changes, reason):
    with played.source(f"0 {XID} 79 0", **changes) as source:
        assert lacking(source).keys() == {"event"}
        assert reason in source.missing["event"]
        assert source.events() == []


def test_events_that_only_one_gpu_withholds_are_told_of_the_other(played):
    told = (f"0 {XID} 79 0", f"1 {XID} 79 0")
    with played.source(*told, register_error_1="4") as source:
        assert lacking(source) == {}
        assert source.errors == {f"event: {ONLY_1}: Insufficient Permissions": 1}
        assert source.events() == [(0, "xid", 79)]


def test_events_that_fail_in_mid_run_are_counted(played):
    with played.source(wait_error="15 1 2") as source:
        played.set_time(1)
        assert source.events() == []
        assert source.errors == {f"event: {LOST}": 1}


def test_a_gpu_that_falls_off_the_bus_is_one_event_and_nulls(played):
    with played.source(f"1 {XID} 79 2", gpu_error_1="15 2.5") as source:
        for at in (2, 3, 4):
            played.set_time(at)
            rows = [source.read(gpu, played.unix_s) for gpu in (0, 1)]
            counters = [source.read_counters(gpu, played.unix_s) for gpu in (0, 1)]
            samples = [source.power_samples(gpu) for gpu in (0, 1)]
            events = source.events()
            assert rows[0]["power_w"] == 79.483
            if at == 2:
                assert (rows[1]["power_w"], len(samples[1])) == (698.125, 100)
                assert events == [(1, "xid", 79)]
            else:
                assert rows[1] == dict.fromkeys(rows[0])
                assert (len(samples[0]), samples[1]) == (50, [])
                assert events == ([(1, "lost", None)] if at == 3 else [])
                assert set(counters[1].values()) <= {None}
        assert source.errors[f"power_w: {LOST}"] == 2
        assert source.errors[f"power_mw: {LOST}"] == 2
