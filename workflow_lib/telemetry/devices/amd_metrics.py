"""The table of metrics that AMD's firmware keeps for a GPU. One call to AMD SMI returns all of it.

Nearly every call of AMD SMI (power, activity, clock, energy) fetches this table from the firmware
and returns one field; ``amdsmi_get_violation_status`` fetches it twice and sleeps 100 ms between.
So it is fetched once here, and all readings of a tick are of the same instant. The call uses the
binding's declarations, but not its ``amdsmi_get_gpu_metrics_info``. That function makes a
dictionary of 90 entries, which takes 360 µs of Python (a reading takes 5 µs here), and reduces the
bits of the throttle status to a yes or no.

A field that a GPU does not have is all bits set. Fields are named as in ``amdsmi_gpu_metrics_t``
(ROCm, amdsmi.h); Linux fills them in ``drivers/gpu/drm/amd/pm/swsmu``.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from workflow_lib.telemetry.source import TelemetryError, UnreadableError

#: unit of the energy accumulator: "15.259uJ (2^-16) units" (Linux, smu_v13_0_6_ppt.c). AMD SMI
#: rounds it to 15.3 µJ (counter_resolution), which is 0.27 % too much.
_ENERGY_UNIT_J = 2.0**-16
#: xgmi_read_data_acc and xgmi_write_data_acc count "KiloBytes"
_LINK_UNIT_BYTES = 1024
#: Bits of indep_throttle_status (Linux, drivers/gpu/drm/amd/pm/swsmu/inc/amdgpu_smu.h) → the NVML
#: bit that means the same: package power limits; current limits (a hardware slowdown); any
#: temperature; PROCHOT, an external thermal alarm
_EVENT_BITS = (
    (0x0000_0000_0000_00FF, 0x4),
    (0x0000_0000_00FF_0000, 0x8),
    (0x0000_3FFF_0000_0000, 0x20),
    (0x0000_C000_0000_0000, 0x40),
)
#: the limits at which firmware throttles by itself: package, voltage regulators, memory
_SOFTWARE_THERMAL = ("socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc")
_RESIDENCIES = ("accumulation_counter", "ppt_residency_acc", "prochot_residency_acc")

#: room behind the table, for a library whose table is longer than the binding's
_MARGIN_BYTES = 1 << 16
_UNTOUCHED = 0xA5
#: a library may leave out padding at the end of the table
_ALIGNMENT_BYTES = 8


class GpuMetrics:
    """The table of one GPU (die). ``fetch`` renews it; all other methods read the fetched table."""

    def __init__(self, smi: Any, handle: Any) -> None:
        """``smi`` is the package ``amdsmi``, ``handle`` a processor handle.

        Raises AttributeError if the binding does not know the table.
        """
        binding = smi.amdsmi_interface.amdsmi_wrapper
        self._function: Callable[[Any, Any], int] = binding.amdsmi_get_gpu_metrics_info
        self._error: Callable[[int], Exception] = smi.AmdSmiLibraryException
        self._handle = handle
        self._size = ctypes.sizeof(binding.amdsmi_gpu_metrics_t)
        self._memory = (ctypes.c_ubyte * (self._size + _MARGIN_BYTES))()
        self._table = binding.amdsmi_gpu_metrics_t.from_buffer(self._memory)
        self._pointer = ctypes.pointer(self._table)
        self._none = {
            name: (1 << 8 * ctypes.sizeof(kind)) - 1
            for name, kind in binding.amdsmi_gpu_metrics_t._fields_
        }
        self._throttled = Throttled()

    def fetch(self) -> None:
        """Fetch the table. Raises the binding's AmdSmiLibraryException."""
        if code := self._function(self._handle, self._pointer):
            raise self._error(code)

    def check_layout(self) -> None:
        """Raise TelemetryError if the library's table and the binding's differ in length."""
        ctypes.memset(self._memory, _UNTOUCHED, len(self._memory))
        self.fetch()
        written = bytes(self._memory).rstrip(bytes([_UNTOUCHED]))
        if not self._size - _ALIGNMENT_BYTES < len(written) <= self._size:
            raise TelemetryError(
                f"ROCm's libamd_smi.so fills {len(written)} bytes of GPU metrics, but the Python "
                f"package amdsmi expects {self._size}: they belong to different versions; put the "
                "site's own share/amd_smi first on PYTHONPATH"
            )
        # Preset all fields to "not available": the library leaves fields alone that the GPU lacks.
        ctypes.memset(self._memory, 0xFF, self._size)
        self.fetch()

    def number(self, *fields: str) -> int:
        """The value of the first of these fields that the GPU has. Raises UnreadableError if it has
        none.
        """
        for field in fields:
            if field in self._none and (value := getattr(self._table, field)) != self._none[field]:
                return int(value)
        raise UnreadableError(f"AMD SMI does not tell {' or '.join(fields)} of this GPU")

    def power_w(self) -> int:
        """Power of the package, in W: on MI3xx the current one, on MI2xx an average. The package's
        other die has 0.
        """
        return self.number("current_socket_power", "average_socket_power")

    def energy_units(self) -> int:
        """The energy accumulator of the package, in units of 2⁻¹⁶ J."""
        return self.number("energy_accumulator")

    def energy_j(self) -> float:
        """The energy accumulator of the package, in J."""
        return self.energy_units() * _ENERGY_UNIT_J

    def link_bytes(self, field: str) -> int:
        """Bytes over all xGMI links. ``field`` is xgmi_read_data_acc (received) or
        xgmi_write_data_acc (sent).

        Raises UnreadableError if the GPU has no such counters.
        """
        links = [units for units in getattr(self._table, field, ()) if units != 2**64 - 1]
        if not links:
            raise UnreadableError("this GPU has no byte counters of its xGMI links (MI3xx has)")
        return int(sum(links)) * _LINK_UNIT_BYTES

    def event_reasons(self) -> int:
        """The momentary throttle status, in NVML's bits."""
        try:
            status = self.number("indep_throttle_status")
        except UnreadableError:
            raise UnreadableError(
                "this GPU has no momentary throttle status (MI2xx has); see throttle_power_cap_s"
            ) from None
        reasons = 0
        for mask, event in _EVENT_BITS:
            if status & mask:
                reasons |= event
        return reasons

    def throttled_s(self) -> Sequence[float | UnreadableError]:
        """Seconds so far at the power cap, in thermal slowdown by firmware, and at PROCHOT; an
        error for each if the GPU does not accumulate them.
        """
        try:
            counter, power, prochot = (self.number(field) for field in _RESIDENCIES)
            time_s = self.number("system_clock_counter") / 1e9
        except UnreadableError:
            return [
                UnreadableError(
                    "this GPU accumulates no throttle times (MI3xx does): its momentary status is "
                    "sampled as event_reasons"
                )
            ] * 3
        thermal = 0
        for field in _SOFTWARE_THERMAL:
            try:
                thermal += self.number(field)
            except UnreadableError:
                continue  # this GPU does not have the limit, so it is never throttled by it
        return self._throttled.advance(time_s, counter, (power, thermal, prochot))


class Throttled:
    """Computes throttled seconds from the firmware's residencies.

    The firmware counts its cycles and, for each cause, the cycles in which it throttled. The
    quotient of two increases is the throttled share of the time between them (amdsmi.h,
    "PVIOL/TVIOL calculations"). The length of a cycle is not documented, so the driver's timestamps
    give the time. Thermal time is the sum of several causes: time with two causes counts twice, up
    to the whole time.
    """

    def __init__(self) -> None:
        self._before: tuple[float, int, tuple[int, ...]] | None = None
        self._seconds = [0.0, 0.0, 0.0]

    def advance(
        self, time_s: float, counter: int, residencies: tuple[int, ...]
    ) -> Sequence[float | UnreadableError]:
        """Seconds for each cause from the first call to ``time_s``.

        Returns errors if counts ran backwards, as after a reset of the GPU.
        """
        before, self._before = self._before, (time_s, counter, residencies)
        if before is None:
            return list(self._seconds)
        cycles = counter - before[1]
        increases = [now - then for now, then in zip(residencies, before[2])]
        if cycles < 0 or min(increases) < 0:
            return [UnreadableError("the firmware's throttle residencies ran backwards")] * 3
        if cycles == 0:
            self._before = before  # the firmware has not updated its table yet
            return list(self._seconds)
        for cause, increase in enumerate(increases):
            self._seconds[cause] += min(increase / cycles, 1.0) * (time_s - before[0])
        return list(self._seconds)
