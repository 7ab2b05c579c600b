"""Compares a platform's file with what Slurm says of its partition: the keys that differ, and the
values of Slurm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from workflow_lib import commands
from workflow_lib.config import Platform, sbatch
from workflow_lib.records.reading import shown
from workflow_lib.words import counted

#: sinfo's format: of each node its name, CPUs, memory, GPUs, features and state; of its partition
#: the time limit and the number of nodes that a job may have
_ASKED = "%N|%c|%m|%G|%f|%T|%l|%s"
#: a line of sinfo's answer, one for each node
_LINE = re.compile(
    r"([A-Za-z0-9_.-]+)\|([0-9]{1,9})\+?\|([0-9]{1,15})\+?\|([^|]*)\|([^|]*)\|([A-Za-z][^|]*)"
    r"\|([0-9:-]{1,20}|[A-Za-z/]+)\|([0-9]+(?:-(?:[0-9]+|infinite))?)"
)
_ANSWER_TIMEOUT_S = 60.0
#: states of sinfo in which a node takes no jobs
_DOWN = re.compile(r"down|drain|fail|maint|unk|power|inval|error", re.IGNORECASE)


class NoAnswerError(RuntimeError):
    """Slurm's commands are missing or do not answer."""


@dataclass(frozen=True)
class Node:
    """A node of the partition, as Slurm knows it."""

    name: str
    cpus: int
    #: in units of 2^20 bytes
    memory_mib: int
    #: GPU type → number of GPUs; the type is "" if Slurm has none
    gpus: Mapping[str, int]
    features: frozenset[str]
    #: sinfo's state, e.g. "idle" or "drained*"
    state: str
    #: limits of the partition; null if it has none
    time_limit_min: float | None
    most_nodes: int | None


def nodes_of(partition: str, excluded: Sequence[str]) -> list[Node]:
    """The partition's nodes without the excluded ones; empty if there is no such partition.

    Raises NoAnswerError.
    """
    names = set()
    if excluded:
        hostnames = _output("scontrol", "show", "hostnames", ",".join(excluded))
        names = {line.strip() for line in hostnames.splitlines()}
    listing = _output(
        "sinfo", "--noheader", "--Node", f"--partition={partition}", f"--format={_ASKED}"
    )
    # A site's wrapper of sinfo may print lines of its own.
    matches = [match for line in listing.splitlines() if (match := _LINE.fullmatch(line.strip()))]
    if not matches and (unknown := [line for line in listing.splitlines() if line.count("|") == 7]):
        raise NoAnswerError(
            f"sinfo: it says of a node {shown(unknown[0])}, which is not understood"
        )
    return [node for node in map(_node, matches) if node.name not in names]


def differences(platform: Platform, nodes: Sequence[Node]) -> Iterator[str]:
    """Yield a message for each key of the platform's file that contradicts Slurm."""
    if not nodes:
        yield f"partition: Slurm knows no {platform.partition}; `sinfo --format=%P` lists them"
        return
    limit_min, most_nodes = nodes[0].time_limit_min, nodes[0].most_nodes
    if limit_min is not None and platform.time_limit_max_min > limit_min:
        yield (
            f"time_limit_max_min: {platform.time_limit_max_min}, but the partition takes jobs of "
            f"at most {limit_min:g} min"
        )
    if most_nodes is not None and platform.nodes > most_nodes:
        yield f"nodes: {platform.nodes}, but a job may have at most {most_nodes} here"
    featured = _featured(platform, nodes)
    if not featured:
        known = sorted(set().union(*(node.features for node in nodes)))
        yield f"constraint: {platform.constraint}, but the nodes' features are {_listed(known)}"
    nodes = featured or nodes
    yield from _of_each_node(platform, nodes)
    if len(nodes) < platform.nodes:
        yield f"nodes: {platform.nodes}, but there are {len(nodes)} that jobs may have"


def unavailable(platform: Platform, nodes: Sequence[Node]) -> str | None:
    """A message if too few nodes are up now, although there are enough; else None."""
    nodes = _featured(platform, nodes) or nodes
    down = sorted(node.name for node in nodes if _DOWN.search(node.state))
    up = len(nodes) - len(down)
    if len(nodes) < platform.nodes or up >= platform.nodes:
        return None
    return f"nodes: {platform.nodes}, but only {up} are up now; down: {_listed(down)}"


def unused(platform: Platform, nodes: Sequence[Node]) -> str | None:
    """A message if all nodes have more GPUs than a job takes of them, which idle in jobs that have
    their nodes alone; else None."""
    nodes = _featured(platform, nodes) or nodes
    least = min((sum(node.gpus.values()) for node in nodes), default=0)
    if not platform.exclusive or least <= platform.gpus_per_node:
        return None
    idle = least - platform.gpus_per_node
    return (
        f"gpus_per_node: {platform.gpus_per_node}, but each node has {least} GPUs or more; as jobs "
        f"are exclusive, {idle} of a node would idle"
    )


def _featured(platform: Platform, nodes: Sequence[Node]) -> Sequence[Node]:
    """The nodes with the platform's feature; all if it asks for none, or by operators."""
    feature = platform.constraint or ""
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", feature):
        return nodes
    return [node for node in nodes if feature in node.features]


def _of_each_node(platform: Platform, nodes: Sequence[Node]) -> Iterator[str]:
    kind = platform.gpu_type
    kinds = sorted({kind for node in nodes for kind in node.gpus})
    if kind is not None and kind not in kinds:
        yield f"gpu_type: {kind}, but the types of the nodes' GPUs are {_listed(kinds)}"
        kind = None
    wanted = {
        "gpus_per_node": (
            *(platform.gpus_per_node, "GPUs"),
            [node.gpus.get(kind, 0) if kind else sum(node.gpus.values()) for node in nodes],
        ),
        "cpus_per_gpu": (
            *(platform.cpus_per_gpu * platform.gpus_per_node, "CPUs"),
            [node.cpus for node in nodes],
        ),
    }
    if not platform.exclusive:  # else a job gets all memory of its nodes
        wanted["memory_per_node_gb"] = (
            *(platform.memory_per_node_gb * 1024, "MiB of memory"),
            [node.memory_mib for node in nodes],
        )
    for key, (asked, unit, there) in wanted.items():
        enough = sum(number >= asked for number in there)
        if enough < min(platform.nodes, len(nodes)):
            yield (
                f"{key}: asks for {asked} {unit} of a node, which {enough} of "
                f"{counted(len(nodes), 'node')} have; the most is {max(there)}"
            )


def _node(line: re.Match[str]) -> Node:
    name, cpus, memory, gres, features, state, limit, size = line.groups()
    gpus: dict[str, int] = {}
    limit_s = sbatch.seconds(limit)
    for kind, number in re.findall(r"(?:^|,)gpu:(?:([^:,(]+):)?(\d+)", gres):
        gpus[kind] = gpus.get(kind, 0) + int(number)
    most = size.rpartition("-")[2]
    return Node(
        name=name,
        cpus=int(cpus),
        memory_mib=int(memory),
        gpus=gpus,
        features=frozenset(features.split(",")),
        state=state,
        time_limit_min=None if limit_s is None else limit_s / 60,
        most_nodes=int(most) if most.isdecimal() else None,
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name or "without a name" for name in names) or "none"


def _output(*command: str) -> str:
    try:
        done = commands.run_slurm(command, _ANSWER_TIMEOUT_S)
    except FileNotFoundError:
        raise NoAnswerError(
            f"{command[0]} is not on the path: run this on a login node of the cluster"
        ) from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswerError(f"{command[0]}: {error}; run this on a login node") from None
    if done.exit_code:
        raise NoAnswerError(
            f"{command[0]}: {done.problem}; run this where {command[0]} reaches the cluster, as on "
            "its login node"
        )
    return done.output
