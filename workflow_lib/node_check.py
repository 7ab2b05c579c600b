"""What the job of a check does on a node: ``python -m workflow_lib.node_check <cell.json>``.

It imports what training needs, opens the sensors, and writes what it found beside the file of the
cell. That also shows that the node can write there.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from workflow_lib.records.cell import Cell
from workflow_lib.records.checks import CheckPaths, NodeCheck
from workflow_lib.records.files import read_record
from workflow_lib.records.paths import node_name
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import report_error, write_json
from workflow_lib.telemetry.choice import open_source
from workflow_lib.telemetry.source import TelemetryError

#: module → distribution, of what training imports on every node
_NEEDED = {"numpy": "numpy", "torch": "torch", "deepspeed": "deepspeed", "submitit": "submitit"}


def clock_ahead_s(directory: Path) -> float:
    """How far this host's clock is ahead of that of the file system of ``directory``, in s; 0 where
    the server's time lies within what the write took here.

    A file is written, so its time is the file server's. Raises OSError.
    """
    probe = directory / f".clock-{node_name()}-{os.getpid()}"
    try:
        before = time.time()
        with probe.open("wb") as stream:
            stream.write(b"x")
            stream.flush()
            os.fsync(stream.fileno())
        after, written = time.time(), probe.stat().st_mtime
        return max(0.0, before - written) + min(0.0, after - written)
    finally:
        probe.unlink(missing_ok=True)


def check(cell: Cell, directory: Path) -> NodeCheck:
    """Check this node. ``directory`` is on the file system of the results. Raises OSError."""
    node = node_name()
    packages: dict[str, str] = {}
    problems = dict(_imports(packages))
    source: str | None = None
    gpus: tuple[str, ...] = ()
    try:
        opened = open_source(cell, node)
    except TelemetryError as error:
        problems["sensors"] = str(error)
    else:
        source, gpus = opened.name, tuple(str(gpu["uuid"]) for gpu in opened.gpus)
        opened.close()
    if source in ("nvidia", "amd") and "torch" in packages:
        import torch

        if torch.cuda.device_count() < cell.ranks_per_node:
            problems["GPUs"] = (
                f"torch {torch.__version__} sees {torch.cuda.device_count()} GPUs, and this node "
                f"has {cell.ranks_per_node} ranks: install the build for these GPUs and their "
                "driver, and let each rank see all GPUs of its node"
            )
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if shutil.which("g++") is None or not header.is_file():
        problems["compile"] = (
            f"cells with compile: true cannot run here: they need g++ and {header} (on Debian g++ "
            "and python3-dev)"
        )
    return NodeCheck(
        node=node,
        python=platform.python_version(),
        packages=packages,
        source=source,
        gpus=gpus,
        clock_ahead_s=clock_ahead_s(directory),
        problems=problems,
    )


def _imports(packages: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Import each package; yield what is wrong. Versions go into ``packages``."""
    for module, distribution in _NEEDED.items():
        try:
            importlib.import_module(module)
            packages[distribution] = metadata.version(distribution)
        # An import runs code of others, which may raise anything.
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if module == "deepspeed":
                problem = f"cells with backend: deepspeed cannot run here: {problem}"
            yield distribution, problem


def main() -> int:
    """Write what this node has. Returns the exit code: 1 if it could not be written."""
    parser = argparse.ArgumentParser(prog="python -m workflow_lib.node_check", description=__doc__)
    parser.add_argument("cell", type=Path)
    path = parser.parse_args().cell
    directory = path.parent
    try:
        cell = read_record(path, Cell)
        result = check(cell, directory)
        written = CheckPaths(directory).node(result.node)
        write_json(written, result)
        read_record(written, NodeCheck)
    except (OSError, RecordError) as error:
        return report_error(f"triptych: {node_name()}", error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
