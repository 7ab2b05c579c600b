"""What a program needs that runs in process and network namespaces of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence


def as_first_process(command: Sequence[str]) -> list[str]:
    """``command`` below a shell. The first process of a process namespace inherits orphans, has to
    wait for each that ends, and hears no signal that it does not ask for.
    """
    waits = '"$@" & trap "kill -TERM $!" TERM INT; wait "$!"; code=$?; exit "$code"'
    return ["bash", "-c", waits, "bash", *command]


def bring_up_network() -> None:
    """The only network there is, within. Without an address beside 127.0.0.1 the resolver tells
    Slurm of none.
    """
    for arguments in (["link", "set", "lo", "up"], ["address", "add", "10.66.0.1/32", "dev", "lo"]):
        subprocess.run(["ip", *arguments], check=True)
