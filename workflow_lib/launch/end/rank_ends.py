"""How the ranks of a run ended, and which of these ends explains the others."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from workflow_lib import records
from workflow_lib.launch.end.log_errors import first_error, nccl_warning
from workflow_lib.records import (
    Cell,
    ErrorRecord,
    ExitRecord,
    Outcome,
    RankRecord,
    RunPaths,
    bounds,
)

#: the line that NCCL's watchdog writes before it ends a process, which Python does not see
_WATCHDOG = "Watchdog caught collective operation timeout: "
_RANK, _OPERATION = re.compile(r"\[rank(\d+)\]"), re.compile(r"OpType=(\w+)")
#: a traceback's frame in torch's collectives, and one in this project's
_COLLECTIVE = re.compile(r'distributed_c10d\.py", line \d+, in (\w+)')
_PROJECT_FRAME = re.compile(
    r'File "[^"\n]*workflow_lib/(train(?:ers|ing)/\S+\.py)", line (\d+), in (\w+)'
)
#: how many ranks a sentence names at most
_NAMED = 4


def missing_ranks(paths: RunPaths, waited: Collection[int]) -> str:
    """A clause that names the ranks of the run that are not in ``waited``; empty if all are."""
    world_size = records.read_record(paths.cell, Cell).degrees.world_size
    missing = [rank for rank in range(world_size) if rank not in waited]
    if not missing:
        return ""
    names = [with_node(paths, rank) for rank in missing[:_NAMED]]
    if len(missing) > _NAMED:
        names.append(f"{len(missing) - _NAMED} more")
    ranks = "rank" if len(missing) == 1 else "ranks"
    return f"{ranks} {', '.join(names)} did not arrive"


def stopped_by_watchdog(paths: RunPaths) -> dict[int, str]:
    """Rank → the collective in which it waited, for each rank that NCCL's watchdog ended, in the
    log's order.
    """
    collectives: dict[int, str] = {}
    log = paths.training_log
    if log.exists():
        with records.open_file(log) as stream:
            # A line may be endless, so it is read in parts. The watchdog's line is short.
            for raw in iter(lambda: stream.readline(bounds.LOG_LINE_BYTES.most), b""):
                line = raw.decode("utf-8", "replace")
                where = line.find(_WATCHDOG)
                rank = _RANK.search(line, 0, max(where, 0))
                operation = _OPERATION.search(line, where)
                if where >= 0 and rank and operation:
                    collectives.setdefault(int(rank[1]), operation[1])
    return collectives


def collective_of(traceback: str) -> str:
    """The collective of torch in which a traceback ends, else the line of training; else ""."""
    traceback = traceback[-bounds.TRACEBACK_LETTERS.most :]
    if named := _COLLECTIVE.findall(traceback):
        return str(named[-1])
    if frames := _PROJECT_FRAME.findall(traceback):
        file, line, function = frames[-1]
        return f"{function}, {file}:{line}"
    return ""


def with_node(paths: RunPaths, rank: int) -> str:
    """A rank and its node, e.g. "3 on node7"; the rank alone if its node is not known."""
    try:
        record = records.read_if_there(paths.rank(rank), RankRecord)
    except records.RecordError:
        return f"{rank}"  # the record is damaged
    return f"{rank} on {record.node}" if record is not None else f"{rank}"


_Record = TypeVar("_Record", ErrorRecord, ExitRecord)
#: signals that other processes send; a process that ends by any other signal has crashed
_FROM_OUTSIDE = frozenset(
    f"SIG{name}" for name in ("KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "XCPU")
)


class Kind(enum.IntEnum):
    """What ended a rank. The greater the value, the less it explains the run's end."""

    #: the rank itself: an error, a crash, an exit
    FAILED = 0
    #: a signal that did not come from the job's launcher
    KILLED = 1
    #: an error after the launcher had begun to end ranks
    AFTERMATH = 2
    #: the rank waited for another rank in vain
    WAITED = 3
    #: the launcher told the rank to end
    ENDED_BY_LAUNCHER = 4


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    node: str
    unix_time_s: float
    kind: Kind
    #: the run's outcome if this end explains it
    outcome: Outcome
    #: a clause that names the rank and says what was seen
    description: str


@dataclass(frozen=True)
class RankEnds:
    """How a run's ranks ended, as far as they left records."""

    #: the ends of ranks that failed; the one that explains the run best comes first
    ends: tuple[RankEnd, ...]
    #: records that could not be read, and why
    damaged: tuple[str, ...]
    #: the ranks that these damaged records belong to
    unknown: frozenset[int]

    @property
    def first(self) -> RankEnd | None:
        """The end that explains the run best; None if no rank failed."""
        return self.ends[0] if self.ends else None

    def ranks(self, kind: Kind) -> set[int]:
        """The ranks that ended in this way."""
        return {end.rank for end in self.ends if end.kind is kind}

    @property
    def description(self) -> str:
        """The description of the first end. If it was a kill, also how many more were killed."""
        if self.first is None:
            return ""
        others = len(self.ranks(Kind.KILLED) - {self.first.rank})
        more = f"; so were {others} more" if others and self.first.kind is Kind.KILLED else ""
        return self.first.description + more


def read(paths: RunPaths) -> RankEnds:
    """Read how the ranks ended, as the ranks and their watchers recorded it."""
    damaged: list[str] = []
    unknown: set[int] = set()
    errors = _records(paths.errors, ErrorRecord, damaged, unknown)
    exits = _records(paths.exits, ExitRecord, damaged, unknown)
    ending_unix_s = min((e.unix_time_s for e in exits.values() if e.told_to_end), default=None)
    waited = stopped_by_watchdog(paths)
    ends = [_from_error(paths, error, ending_unix_s) for error in errors.values()]
    ends += [
        _from_exit(paths, exit_, exit_.rank in waited)
        for rank, exit_ in exits.items()
        if rank not in errors
    ]
    return RankEnds(tuple(sorted(ends, key=_order)), tuple(damaged), frozenset(unknown))


def _order(end: RankEnd) -> tuple[int, float]:
    """The key to sort ends by. Own failures and kills are sorted together by time, because either
    may have caused the other.
    """
    return max(end.kind, Kind.KILLED), end.unix_time_s


def _records(
    directory: Path, kind: type[_Record], damaged: list[str], unknown: set[int]
) -> dict[int, _Record]:
    by_rank = {}
    for path in sorted(directory.glob("rank*.json")):
        try:
            record = records.read_record(path, kind)
        except (records.RecordError, OSError) as error:
            damaged.append(str(error))
            number = path.stem.removeprefix("rank")
            unknown |= {int(number)} if number.isdecimal() else set()
        else:
            by_rank[record.rank] = record
    return by_rank


def _from_error(paths: RunPaths, error: ErrorRecord, ending_unix_s: float | None) -> RankEnd:
    description = f"rank {error.rank} on {error.node}, in {error.phase}: {error.message}"
    kind = Kind.FAILED
    if error.outcome is Outcome.COMMUNICATION_TIMEOUT:
        kind = Kind.WAITED
        if collective := collective_of(error.traceback):
            description += f" (it waited in {collective})"
    elif error.outcome is Outcome.ERROR:
        if "NCCL error" in error.message and (warning := nccl_warning(paths.training_log)):
            description += f"; NCCL says: {warning}"
        description += f" (traceback: {paths.rank_error(error.rank)})"
        if ending_unix_s is not None and error.unix_time_s > ending_unix_s:
            kind = Kind.AFTERMATH
    return RankEnd(error.rank, error.node, error.unix_time_s, kind, error.outcome, description)


def _from_exit(paths: RunPaths, ended: ExitRecord, waited: bool) -> RankEnd:
    """``waited`` says whether NCCL's watchdog wrote that it ended this rank."""
    who = f"rank {ended.rank} on {ended.node}"
    kind, outcome = Kind.FAILED, Outcome.ERROR
    if ended.told_to_end:
        kind, description = Kind.ENDED_BY_LAUNCHER, f"{who} was told to end"
    elif ended.signal == "SIGKILL" and ended.out_of_memory_kills:
        outcome = Outcome.OUT_OF_MEMORY
        description = (
            f"{who} was ended by SIGKILL, host memory having run out: the kernel ended "
            f"{ended.out_of_memory_kills} of its control group's processes for it"
        )
    elif ended.signal in _FROM_OUTSIDE:
        kind = Kind.KILLED
        description = f"{who} was ended by {ended.signal}, which did not come from its launcher"
        if ended.signal == "SIGKILL":
            description += (
                "; whether host memory ran out is not known there"
                if ended.out_of_memory_kills is None
                else "; host memory had not run out"
            )
    elif waited:
        kind, outcome = Kind.WAITED, Outcome.COMMUNICATION_TIMEOUT
        description = f"{who} was ended by NCCL's watchdog"
    else:
        how = f"crashed with {ended.signal}" if ended.signal else f"exited with {ended.exit_code}"
        log = paths.training_log
        description = (
            f"{who} {how} and left no error record; {log} says: {first_error(log).message}"
        )
    return RankEnd(ended.rank, ended.node, ended.unix_time_s, kind, outcome, description)
