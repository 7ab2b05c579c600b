"""How the ranks of a run ended, the one that failed first before the cascade after it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from workflow_lib import records
from workflow_lib.launch.end import missing_ranks
from workflow_lib.launch.end.own_words import own_words
from workflow_lib.records import ErrorRecord, ExitRecord, Outcome, RunPaths

_Record = TypeVar("_Record", ErrorRecord, ExitRecord)
#: signals by which others end a process; all others are of its own making
_FROM_OUTSIDE = frozenset(
    f"SIG{name}" for name in ("KILL", "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "XCPU")
)


class Kind(enum.IntEnum):
    """Whose doing an end was; the greater, the less it explains."""

    #: its own: an error, a crash, an exit
    OWN = 0
    #: somebody ended it, and the job's launcher did not
    KILLED = 1
    #: an error after the launcher had begun to end ranks
    AFTERMATH = 2
    #: it waited for another rank in vain
    WAITED = 3
    #: the launcher ended it
    TOLD = 4


@dataclass(frozen=True)
class RankEnd:
    """How one rank ended."""

    rank: int
    node: str
    unix_time_s: float
    kind: Kind
    #: what this end would mean for the run
    outcome: Outcome
    #: a clause that names the rank and says what was seen
    description: str


@dataclass(frozen=True)
class RankEnds:
    """How a run's ranks ended, as far as they left records."""

    #: of ranks that did not end well, what explains the run best first
    ends: tuple[RankEnd, ...]
    #: records that could not be read, and why
    damaged: tuple[str, ...]
    #: ranks that they are of
    unknown: frozenset[int]

    @property
    def first(self) -> RankEnd | None:
        """The end that explains the run best: the earliest that is no consequence of another."""
        return self.ends[0] if self.ends else None

    def ranks(self, kind: Kind) -> set[int]:
        """Ranks that ended so."""
        return {end.rank for end in self.ends if end.kind is kind}

    @property
    def description(self) -> str:
        """What the first end was; and of kills, which often come together, how many more."""
        if self.first is None:
            return ""
        others = len(self.ranks(Kind.KILLED) - {self.first.rank})
        more = f"; so were {others} more" if others and self.first.kind is Kind.KILLED else ""
        return self.first.description + more


def read(paths: RunPaths) -> RankEnds:
    """All that the ranks, and those who watched over them, wrote of their ends."""
    damaged: list[str] = []
    unknown: set[int] = set()
    errors = _records(paths.errors, ErrorRecord, damaged, unknown)
    exits = _records(paths.exits, ExitRecord, damaged, unknown)
    told_unix_s = min((e.unix_time_s for e in exits.values() if e.told_to_end), default=None)
    waited = missing_ranks.stopped_by_watchdog(paths)
    ends = [_of_error(paths, error, told_unix_s) for error in errors.values()]
    ends += [
        _of_exit(paths, exit_, exit_.rank in waited)
        for rank, exit_ in exits.items()
        if rank not in errors
    ]
    return RankEnds(tuple(sorted(ends, key=_order)), tuple(damaged), frozenset(unknown))


def _order(end: RankEnd) -> tuple[int, float]:
    """Own failures and kills come in the order of time: either may be the other's consequence."""
    return max(end.kind, Kind.KILLED), end.unix_time_s


def _records(
    directory: Path, kind: type[_Record], damaged: list[str], unknown: set[int]
) -> dict[int, _Record]:
    found = {}
    for path in sorted(directory.glob("rank*.json")):
        try:
            record = records.read_record(path, kind)
        except (records.RecordError, OSError) as error:
            damaged.append(str(error))
            number = path.stem.removeprefix("rank")
            unknown |= {int(number)} if number.isdecimal() else set()
        else:
            found[record.rank] = record
    return found


def _of_error(paths: RunPaths, error: ErrorRecord, told_unix_s: float | None) -> RankEnd:
    said = f"rank {error.rank} on {error.node}, in {error.phase}: {error.message}"
    kind = Kind.OWN
    if error.outcome is Outcome.COMMUNICATION_TIMEOUT:
        kind = Kind.WAITED
        if collective := missing_ranks.collective(error.traceback):
            said += f" (it waited in {collective})"
    elif error.outcome is Outcome.ERROR:
        said += f" (traceback: {paths.rank_error(error.rank)})"
        if told_unix_s is not None and error.unix_time_s > told_unix_s:
            kind = Kind.AFTERMATH
    return RankEnd(error.rank, error.node, error.unix_time_s, kind, error.outcome, said)


def _of_exit(paths: RunPaths, ended: ExitRecord, waited: bool) -> RankEnd:
    """``waited`` is whether NCCL's watchdog says that it ended this rank."""
    who = f"rank {ended.rank} on {ended.node}"
    kind, outcome = Kind.OWN, Outcome.ERROR
    if ended.told_to_end:
        kind, said = Kind.TOLD, f"{who} was told to end"
    elif ended.signal == "SIGKILL" and ended.out_of_memory_kills:
        outcome = Outcome.OUT_OF_MEMORY
        said = (
            f"{who} was ended by SIGKILL, host memory having run out: the kernel ended "
            f"{ended.out_of_memory_kills} of its control group's processes for it"
        )
    elif ended.signal in _FROM_OUTSIDE:
        kind = Kind.KILLED
        said = f"{who} was ended by {ended.signal}, which did not come from its launcher"
        if ended.signal == "SIGKILL":
            said += (
                "; whether host memory ran out is not known there"
                if ended.out_of_memory_kills is None
                else "; host memory had not run out"
            )
    elif waited:
        kind, outcome = Kind.WAITED, Outcome.COMMUNICATION_TIMEOUT
        said = f"{who} was ended by NCCL's watchdog"
    else:
        how = f"crashed with {ended.signal}" if ended.signal else f"exited with {ended.exit_code}"
        log = paths.logs / "training.log"
        said = f"{who} {how} and left no error record; {log} says: {own_words(log).said}"
    return RankEnd(ended.rank, ended.node, ended.unix_time_s, kind, outcome, said)
