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

from tests.slurm import namespaces

INSIDE = "TRIPTYCH_CHAOS_INSIDE"


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
        [*unshare, *namespaces.as_first_process(program)],
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
        ["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/run"],
    ):
        subprocess.run(command, check=True)
    namespaces.bring_up_network()
