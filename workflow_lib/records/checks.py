"""Records of a check of a platform, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workflow_lib.records.paths import File, NodeFile


@dataclass(frozen=True)
class CheckPaths:
    """The files of a check, ``results/checks/<platform>/<digest of its file>/``, besides those that
    a run has, too: ``cell.json``, ``job.sh`` and ``logs/``."""

    directory: Path

    result = File("check.json")
    nodes = File("nodes")
    node = NodeFile("nodes/{}.json")


@dataclass(frozen=True)
class NodeCheck:
    """``nodes/<node>.json``: what the job of a check found on one node."""

    node: str
    #: version of the interpreter
    python: str
    #: package → version, of those that could be imported
    packages: Mapping[str, str]
    #: the source of GPU readings, "nvidia", "amd" or "simulated"; null if none opened
    source: str | None
    #: UUIDs of the GPUs
    gpus: tuple[str, ...]
    #: how far the node's clock is ahead of the file system's, s
    clock_ahead_s: float
    #: a package, "sensors", "GPUs" or "compile" → what is wrong with it
    problems: Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    """One line of a check."""

    #: what was checked
    part: str
    #: whether it is as it must be; null if that is not known, or need not be
    held: bool | None
    #: what was found, and what to do about it
    said: str


@dataclass(frozen=True)
class CheckRecord:
    """``check.json``: the result of a check of a platform."""

    platform: str
    #: when it ended
    unix_time_s: float
    #: whether its job ran, and nothing failed
    passed: bool
    findings: tuple[Finding, ...]
