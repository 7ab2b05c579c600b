"""Energy of the CPU packages from RAPL, through Linux's powercap (AMD's CPUs use Intel's name).

Since 2020 (CVE-2020-8694) only root can read the counters, unless a site changes that.
"""

from __future__ import annotations

import re
from pathlib import Path

from workflow_lib.telemetry.node.kernel_files import KernelFile
from workflow_lib.telemetry.source import UnreadableError

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
        """Energy so far, in J. Call it before a counter can wrap twice (15 minutes at 300 W).

        Raises OSError or ValueError if a counter cannot be read.
        """
        now_uj = [counter.number() for counter in self._counters]
        for now, before, range_uj in zip(now_uj, self._before_uj, self._ranges_uj, strict=True):
            self._sum_uj += now - before if now >= before else now - before + range_uj
        self._before_uj = now_uj
        return self._sum_uj / 1e6

    def close(self) -> None:
        """Close the counters."""
        for counter in self._counters:
            counter.close()


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip()
