"""Counts the Slurm commands that a program runs: in front of each real one, on the program's path,
lies an executable of the same name, which notes the time and becomes the real one.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

#: every command that asks slurmctld or slurmdbd something, or changes it
COMMANDS = (
    *("sbatch", "squeue", "sacct", "scontrol", "scancel"),
    *("sacctmgr", "sinfo", "sstat", "sprio", "sreport", "sshare"),
)


class CommandLog:
    """The Slurm commands that processes with ``environment()`` ran, and when."""

    def __init__(self, directory: Path, commands: tuple[str, ...] = COMMANDS) -> None:
        """Write the executables into a new directory. Raises FileNotFoundError where a real one is
        not on the path.
        """
        self._directory = directory / "bin"
        self._log = directory / "commands.log"
        self._directory.mkdir(parents=True)
        self._log.touch()
        for command in commands:
            real = shutil.which(command)
            if real is None:
                raise FileNotFoundError(f"{command} is not on the path")
            wrapper = self._directory / command
            # A command that a job runs is none of the client's.
            wrapper.write_text(
                "#!/bin/sh\n"
                '[ -n "$SLURM_JOB_ID" ] || printf \'%s %s\\n\' "$(date +%s.%N)" '
                f"{command} >>{shlex.quote(str(self._log))}\n"
                f'exec {shlex.quote(real)} "$@"\n',
                encoding="utf-8",
            )
            wrapper.chmod(0o755)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """``base`` with the executables first on its path."""
        return {**base, "PATH": f"{self._directory}{os.pathsep}{base['PATH']}"}

    def between(self, start_unix_s: float, end_unix_s: float) -> Counter[str]:
        """Command → how often it was started in a stretch of time."""
        lines = (line.split() for line in self._log.read_text(encoding="utf-8").splitlines())
        return Counter(name for at, name in lines if start_unix_s <= float(at) < end_unix_s)
