"""Energy of the CPU packages from RAPL, through Linux's powercap (AMD's CPUs use Intel's name).

Since 2020 (CVE-2020-8694) only root can read the counters, unless a site changes that.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from workflow_lib.telemetry.node.kernel_files import KernelFile
from workflow_lib.telemetry.source import UnreadableError

#: No package draws so much. A counter that would have advanced faster by going round its range, or
#: by over half of it, has stepped back instead.
_MOST_W = 10_000.0
#: zones of packages; not zones within a package (intel-rapl:0:0 is its cores or memory), and not
#: intel-rapl-mmio:0, which is the same package again
_ZONE = re.compile(r"intel-rapl:\d+")


class CpuEnergy:
    """The energy of all CPU packages since this object was made."""

    def __init__(self, root: Path) -> None:
        """Raises UnreadableError with the reason if no counters can be read."""
        try:
            zones = [
                zone
                for zone in sorted(root.glob("sys/class/powercap/intel-rapl:*"))
                if _ZONE.fullmatch(zone.name) and _text(zone / "name").startswith("package")
            ]
            self._counters = [KernelFile(zone / "energy_uj") for zone in zones]
            self._ranges_uj = [int(_text(zone / "max_energy_range_uj")) for zone in zones]
            self._before_uj = [counter.number() for counter in self._counters]
            self._before_s = time.monotonic()
        except PermissionError as error:
            raise UnreadableError(
                f"{error.filename} (RAPL) is readable by root alone, unless the site opens it"
            ) from None
        except (OSError, ValueError) as error:
            raise UnreadableError(f"RAPL: {error}") from None
        if not zones:
            raise UnreadableError("no CPU package under /sys/class/powercap (RAPL)")
        self._sum_uj = 0

    def read_j(self) -> float:
        """Energy so far, in J. It falls if a counter stepped back.

        Call it before a counter can go round half its range (7 minutes at 300 W). Raises OSError or
        ValueError if a counter cannot be read.
        """
        now_uj, now_s = [counter.number() for counter in self._counters], time.monotonic()
        most_uj = 1e6 * _MOST_W * max(now_s - self._before_s, 1.0)
        for now, before, range_uj in zip(now_uj, self._before_uj, self._ranges_uj, strict=True):
            rise_uj = now - before
            if rise_uj < 0 and rise_uj + range_uj <= min(most_uj, range_uj / 2):
                rise_uj += range_uj
            self._sum_uj += rise_uj
        self._before_uj, self._before_s = now_uj, now_s
        return self._sum_uj / 1e6

    def close(self) -> None:
        """Close the counters."""
        for counter in self._counters:
            counter.close()


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip()
