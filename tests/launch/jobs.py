"""Jobs on this machine: rendered scripts with real node commands, whose telemetry and training are
what a test says.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from tests.launch import scripts
from tests.texts import edit
from tests.waiting import PATIENCE_S, until
from workflow_lib.records.files import read_record
from workflow_lib.records.outcomes import EndedRecord
from workflow_lib.records.paths import RunPaths

ROOT = Path(__file__).parents[2]

#: The rendered script with real node commands; telemetry and training are what a test says.
_INTERPRETER = """#!/bin/sh
run={run}
case "$*" in
*workflow_lib.launch.job.node*) exec {python} "$@" ;;
*workflow_lib.telemetry.limits*) {limits} ;;
*workflow_lib.telemetry*) {telemetry} ;;
*torch.distributed.run*) {training} ;;
esac
"""
UNTIL_STOPPED = 'while [ ! -e "$run/telemetry/stop" ]; do sleep 0.02; done'
SAMPLES = f'touch "$run/telemetry/node1.ready"; {UNTIL_STOPPED}'
NEVER_READY = UNTIL_STOPPED
TRAINS_FOR_LONG = 'echo $$ >"$run/training.pid"; exec sleep 600'


class Job:
    """A rendered local script, running. ``telemetry_options`` replace those of its cell.

    ``power_limits_w`` are its cell's, which ``limits`` sets. In the script the first text of
    ``script`` is replaced by the second.
    """

    def __init__(
        self,
        directory: Path,
        telemetry: str,
        training: str,
        power_limits_w: tuple[int, ...] = (),
        limits: str = "exit 1",
        script: tuple[str, str] | None = None,
        **telemetry_options: float,
    ) -> None:
        planned = scripts.planned("demo")
        interpreter = directory / "interpreter"
        site = scripts.platform(directory, "local", python=str(interpreter))
        cell = scripts.with_telemetry(planned.cell, **telemetry_options)
        limited = dataclasses.replace(cell.training, power_limits_w=power_limits_w)
        cell = dataclasses.replace(cell, training=limited)
        places = scripts.write(cell, site, ROOT, directory / "results")
        self.paths = RunPaths(places.run_directory)
        if script is not None:
            edit(self.paths.script, *script)
        interpreter.write_text(
            _INTERPRETER.format(
                run=shlex.quote(str(self.paths.directory)),
                python=shlex.quote(sys.executable),
                limits=limits,
                telemetry=telemetry,
                training=training,
            )
        )
        interpreter.chmod(0o755)
        self.process = subprocess.Popen(
            ["bash", str(self.paths.script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the job has come that far."""
        until(condition, self.process)

    def runs(self, word: str) -> bool:
        """Whether the script has started a command with this word, and waits for it."""
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if word in process.cmdline():
                    return True
        return False

    def training_process(self) -> int:
        """The process of a training that goes on for long."""
        pid = self.paths.directory / "training.pid"
        self.until(lambda: pid.exists() and pid.read_text().endswith("\n"))
        return int(pid.read_text())

    def finish(self) -> EndedRecord:
        """Wait for the end; returns the job's end record."""
        # Until nobody who holds its output is left either.
        self.output, _ = self.process.communicate(timeout=PATIENCE_S)
        return read_record(self.paths.ended, EndedRecord)
