"""What is known of a run's end: the files that it left, how its ranks ended, and which rank's end
explains the others.
"""

from __future__ import annotations

import enum
import functools
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from workflow_lib.launch import gpu_faults
from workflow_lib.launch.gpu_faults import GpuFault
from workflow_lib.launch.log_errors import first_error, nccl_warning, tail
from workflow_lib.records import bounds
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_if_there, read_json, read_record
from workflow_lib.records.nodes import TelemetryStart
from workflow_lib.records.outcomes import (
    EndedRecord,
    ErrorRecord,
    ExitRecord,
    JobRecord,
    JobState,
    Outcome,
    StopRecord,
    SuspensionRecord,
)
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError, open_file

_Record = TypeVar("_Record", ErrorRecord, ExitRecord)
_JobFile = TypeVar("_JobFile", EndedRecord, StopRecord, SuspensionRecord)

#: a file system with less free space than this, in bytes, is called full
_FULL_BELOW = 65536
#: What Slurm writes into a job's log if a node failed under a step. The job itself may go on and
#: end as FAILED. srun also names the node.
_CANCELLED_FOR_A_NODE = re.compile(r"^slurmstepd: .*CANCELLED AT \S+ DUE TO NODE FAILURE", re.M)
_FAILED_NODE = re.compile(r"^srun: error: Node failure on (\S+)", re.M)
#: the line that NCCL's watchdog writes before it ends a process, which Python does not see
_WATCHDOG = "Watchdog caught collective operation timeout: "
_RANK, _OPERATION = re.compile(r"\[rank(\d+)\]"), re.compile(r"OpType=(\w+)")
#: a traceback's frame in torch's collectives, and one in this project's
_COLLECTIVE = re.compile(r'distributed_c10d\.py", line \d+, in (\w+)')
_PROJECT_FRAME = re.compile(
    r'File "[^"\n]*workflow_lib/(train(?:ers|ing)/\S+\.py)", line (\d+), in (\w+)'
)


def stopped_by_watchdog(paths: RunPaths) -> dict[int, str]:
    """Rank → the collective in which it waited, for each rank that NCCL's watchdog ended, in the
    log's order.
    """
    collectives: dict[int, str] = {}
    log = paths.training_log
    if log.exists():
        with open_file(log) as stream:
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
    #: rank → the collective in which it waited, where NCCL's watchdog ended it
    watchdog: Mapping[int, str]
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


def read_rank_ends(paths: RunPaths) -> RankEnds:
    """Read how the ranks ended, as the ranks and their watchers recorded it."""
    damaged: list[str] = []
    unknown: set[int] = set()
    errors = _records(paths.errors, ErrorRecord, damaged, unknown)
    exits = _records(paths.exits, ExitRecord, damaged, unknown)
    ending_unix_s = min((e.unix_time_s for e in exits.values() if e.told_to_end), default=None)
    watchdog = stopped_by_watchdog(paths)
    ends = [_from_error(paths, error, ending_unix_s) for error in errors.values()]
    ends += [
        _from_exit(paths, exit_, exit_.rank in watchdog)
        for rank, exit_ in exits.items()
        if rank not in errors
    ]
    return RankEnds(tuple(sorted(ends, key=_order)), watchdog, tuple(damaged), frozenset(unknown))


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
            record = read_record(path, kind)
        except (RecordError, OSError) as error:
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


@dataclass(frozen=True)
class Evidence:
    """The files that a run left, and what the scheduler says of its job."""

    paths: RunPaths
    #: the job's end record; null if there is none that can be read
    ended: EndedRecord | None
    #: the job's state from the scheduler; null if the scheduler does not know it
    state: JobState | None
    job_id: str | None
    #: why the job was stopped early; null if it was not
    stopped: StopRecord | None
    #: for how long the job was suspended; null if it was not
    suspended: SuspensionRecord | None
    ranks: RankEnds
    #: the ranks' records that can be read, by rank
    rank_records: Mapping[int, RankRecord]
    #: the likeliest cause first
    faults: tuple[GpuFault, ...]
    #: why limits of GPUs were not in force throughout training; see gpu_faults.not_kept
    limits_not_kept: str
    #: which GPUs may still have the run's limits; see gpu_faults.left
    limits_left: str
    #: the directory, of the run's files or of its logs, whose file system is full; null if there is
    #: none. A quota that is used up is not seen
    full: Path | None
    #: the checksums of the code that the job's parts recorded; null for a part that recorded none
    code: frozenset[str | None]
    #: records that could not be read, and why
    damaged: tuple[str, ...]

    @property
    def trained(self) -> bool:
        """Whether training and all other stages of the job succeeded."""
        ended = self.ended
        return ended is not None and ended.failed_stage is None and ended.training_exit_code == 0

    @functools.cached_property
    def lost_nodes(self) -> tuple[str, ...] | None:
        """The nodes that failed under a step of the job, as Slurm wrote into its logs.

        () if a node failed and the logs do not name it, and None if no node failed.
        """
        text = ""
        for log in (self.paths.job_log(self.job_id), self.paths.training_log):
            with suppress(OSError):  # a job that never began has none
                text += tail(log) + "\n"
        if named := _FAILED_NODE.findall(text):
            return tuple(sorted(set(named)))
        return () if _CANCELLED_FOR_A_NODE.search(text) else None

    def with_node(self, rank: int) -> str:
        """A rank and its node, e.g. "3 on node7"; the rank alone if its node is not known."""
        record = self.rank_records.get(rank)
        return f"{rank} on {record.node}" if record is not None else f"{rank}"

    def fault_of(self, node: str) -> GpuFault | None:
        """The likeliest fault of a node's GPUs; None if they had none."""
        return next((fault for fault in self.faults if fault.node == node), None)


def gather(paths: RunPaths, state: JobState | None) -> Evidence:
    """Read the files that the run left.

    Raises records.RecordError if its ``job.json`` cannot be read.
    """
    unread: list[str] = []
    ended = _read(paths.ended, EndedRecord, unread)
    stopped = _read(paths.stopped, StopRecord, unread)
    suspended = _read(paths.suspended, SuspensionRecord, unread)
    job = read_if_there(paths.job, JobRecord)
    ranks = read_rank_ends(paths)
    rank_records = _rank_records(paths)
    faults, unread_events = gpu_faults.find(paths)
    not_kept = left = ""
    try:
        not_kept = gpu_faults.not_kept(paths, ended.nodes if ended else ())
        left = gpu_faults.left(paths)
    except RecordError as error:
        not_kept = f"what became of the GPUs' limits cannot be read: {error}"
    return Evidence(
        paths=paths,
        ended=ended,
        state=state,
        job_id=ended.job_id if ended else (job.job_id if job else None),
        stopped=stopped,
        suspended=suspended,
        ranks=ranks,
        rank_records=rank_records,
        faults=tuple(faults),
        limits_not_kept=not_kept,
        limits_left=left,
        full=_full(paths),
        code=frozenset(_code(paths, ended, rank_records)),
        damaged=(*unread, *ranks.damaged, *unread_events),
    )


def _rank_records(paths: RunPaths) -> dict[int, RankRecord]:
    by_rank = {}
    for path in paths.steps.glob("rank*.json"):
        with suppress(RecordError):
            record = read_record(path, RankRecord)
            by_rank[record.rank] = record
    return by_rank


def _code(
    paths: RunPaths, ended: EndedRecord | None, ranks: Mapping[int, RankRecord]
) -> Iterator[str | None]:
    """The checksum of the code that each part of the job recorded."""
    if ended is not None:
        yield ended.code_sha256
    # Damaged records are named by those who need them.
    with suppress(RecordError, FileNotFoundError):
        began = read_json(paths.environment)
        code = began.get("code_sha256") if isinstance(began, dict) else None
        yield code if isinstance(code, str) else None
    yield from (record.code_sha256 for record in ranks.values())
    for node in paths.sampled_nodes():
        with suppress(RecordError):
            yield read_record(paths.telemetry_start(node), TelemetryStart).code_sha256


def _full(paths: RunPaths) -> Path | None:
    for directory in (paths.directory, paths.logs):
        if directory.is_dir() and shutil.disk_usage(directory).free < _FULL_BELOW:
            return directory
    return None


def _read(path: Path, kind: type[_JobFile], unread: list[str]) -> _JobFile | None:
    """A record that the job wrote; None if it is missing or, as noted in ``unread``, damaged."""
    try:
        return read_if_there(path, kind)
    except RecordError as error:
        unread.append(str(error))
        return None
