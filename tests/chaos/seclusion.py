"""A place of its own for the cluster that faults are put into: namespaces of the kernel.

Its daemons, ports, mounts and processes are seen by nobody outside, and all go with it. So faults
hit no other cluster of the machine, and what a run leaves running is exactly what is still there.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

INSIDE = "TRIPTYCH_CHAOS_INSIDE"
#: the first process of a process namespace inherits orphans, and has to wait for each that ends
_INIT = '"$@" & trap "kill -TERM $!" TERM INT; wait "$!"; code=$?; exit "$code"'


def enter(directory: Path, arguments: Sequence[str]) -> int:
    """Run ``python -m tests.chaos`` with ``arguments`` in new namespaces; returns its exit code.

    ``directory`` will hold what is private there. Raises SystemExit where the kernel refuses.
    """
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise SystemExit("chaos: starts a Slurm of its own in new namespaces: run this as root")
    unshare = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    possible = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
    if possible.returncode:
        raise SystemExit(
            f"chaos: no new namespaces here ({possible.stderr.strip()}); run this on a machine of "
            "your own, or in a container with --privileged"
        )
    program = [sys.executable, "-m", "tests.chaos", *arguments]
    return subprocess.run(
        [*unshare, "bash", "-c", _INIT, "bash", *program],
        env=dict(os.environ) | {INSIDE: str(directory)},
        check=False,
    ).returncode


def furnish(directory: Path) -> None:
    """Within the namespaces: an /etc and a /run that nobody else sees, and a network."""
    etc = directory / "etc"
    shutil.copytree("/etc", etc, symlinks=True, ignore=shutil.ignore_patterns("slurm"))
    # Names lead to the only network there is.
    hosts = [line for line in (etc / "hosts").read_text().splitlines() if "#" not in line]
    own = socket.gethostname().partition(".")[0]
    kept = [line for line in hosts if own not in line.split()]
    (etc / "hosts").write_text("\n".join([*kept, f"127.0.0.1 {own}", ""]))
    for command in (
        ["mount", "--bind", str(etc), "/etc"],
        ["mount", "-t", "tmpfs", "none", "/run"],
        ["ip", "link", "set", "lo", "up"],
        # Without an address beside 127.0.0.1 the resolver tells Slurm of none.
        ["ip", "address", "add", "10.66.0.1/32", "dev", "lo"],
    ):
        subprocess.run(command, check=True)
