"""Checks whether a run's telemetry covers its measured steps, on every GPU and without gaps.

If a part of a run was not sampled, its energy would appear too low, so the run is no result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow_lib import gpu_models
from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import STEPS, RankRecord
from workflow_lib.records.files import read_if_there, read_record
from workflow_lib.records.nodes import NodeClock, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError, read_csv
from workflow_lib.records.telemetry_columns import SAMPLER_BLOCKS
from workflow_lib.telemetry.validity import InvalidTelemetryError
from workflow_lib.telemetry.validity.sensors import check_sensors
from workflow_lib.words import counted


def check_same_run(path: Path, start: TelemetryStart, ranks: Sequence[RankRecord]) -> None:
    """Compare the node, job and boot id in the sampler's record ``start`` with those of ``ranks``.

    ``path`` is the file of ``start``; ``ranks`` are the ranks of its node. A value that one side
    lacks is not compared. Raises InvalidTelemetryError.
    """
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    if any(start.node != rank.node for rank in ranks):
        raise InvalidTelemetryError(f"{path} is of node {start.node!r}.")
    for rank in ranks:
        for what, sampled, trained in (
            ("job", start.job_id, rank.job_id),
            ("start of the machine, boot id", start.boot_id, rank.boot_id),
        ):
            if sampled is not None and trained is not None and sampled != trained:
                raise InvalidTelemetryError(
                    f"{path} is not of this run: it was sampled in {what} {sampled}, but rank "
                    f"{rank.rank} trained in {what} {trained}. Run the cell again."
                )


@dataclass
class _Step:
    """The last rank to begin a step and the first to end it, of the ranks noted so far."""

    began_unix_s: float
    began: RankRecord
    ended_unix_s: float
    ended: RankRecord


class SameSteps:
    """Compares the steps of all ranks, which are noted rank by rank.

    Ranks that exchange data in a step run it at the same time: no rank can end it before all have
    begun it. If the recorded times, after correction of the clocks, say otherwise, the clocks are
    wrong. Step times would then be too long, because a step lasts from its start on the first rank
    to its end on the last one.
    """

    def __init__(self, paths: RunPaths, cell: Cell) -> None:
        self._paths = paths
        self._inference = cell.training.workload == "inference"
        self._steps: dict[tuple[tuple[int, ...], int], _Step] = {}
        self._clocks: dict[str, NodeClock | None] = {}

    def note(self, rank: RankRecord, step: int, began_unix_s: float, ended_unix_s: float) -> None:
        """Add a step of a rank, with times of its node's clock.

        Raises InvalidTelemetryError if the step contradicts another rank's step, and RecordError if
        the record of a clock is damaged.
        """
        clock = self._clock(rank.node)
        if clock is not None:
            began_unix_s -= clock.ahead_at(began_unix_s)
            ended_unix_s -= clock.ahead_at(ended_unix_s)
        # In training, all ranks exchange gradients. In inference, replicas exchange nothing, and
        # the first stage of a pipeline need not wait for the last.
        group = (rank.dp_rank or 0, rank.pp_rank or 0) if self._inference else ()
        noted = self._steps.setdefault((group, step), _Step(began_unix_s, rank, ended_unix_s, rank))
        if began_unix_s > noted.began_unix_s:
            noted.began_unix_s, noted.began = began_unix_s, rank
        if ended_unix_s < noted.ended_unix_s:
            noted.ended_unix_s, noted.ended = ended_unix_s, rank
        self._check(step, noted)

    def _check(self, step: int, noted: _Step) -> None:
        early, late = noted.ended, noted.began
        apart_s = noted.began_unix_s - noted.ended_unix_s
        clocks = {self._clock(early.node), self._clock(late.node)}
        if apart_s > sum(clock.error_s for clock in clocks if clock is not None):
            why = (
                "The ranks did not wait for each other in that step, so they did not train one "
                "model together. Have them exchange gradients in each step, and run the cell again."
                if early.node == late.node
                else "By their clocks, which differ by more than a step takes. Have the nodes' "
                "clocks synchronised (chronyc tracking), and run the cell again."
            )
            raise InvalidTelemetryError(
                f"Rank {early.rank} on {early.node} ended step {step} {apart_s:.3f} s before rank "
                f"{late.rank} on {late.node} began it. {why}"
            )

    def _clock(self, node: str) -> NodeClock | None:
        """The record of a node's clock; None in runs on one node or of earlier versions."""
        if node not in self._clocks:
            self._clocks[node] = read_if_there(self._paths.clock(node), NodeClock)
        return self._clocks[node]


#: the largest error of a node's clock against rank 0's, as a share of a step
_LARGEST_CLOCK_ERROR = 0.01
#: the longest pause between two sampling blocks if rates alternate
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True)
class _Window:
    """The time span of a run's measured steps, and its ranks by node."""

    start_unix_s: float
    end_unix_s: float
    ranks: dict[str, list[RankRecord]]


def invalid_reason(paths: RunPaths, cell: Cell) -> str | None:
    """One sentence that says why telemetry does not cover the measured steps; None if it does.

    Every rank must have recorded all measured steps, and no two nodes may have the same GPU. No
    step may have ended on one rank before another rank began it (:class:`SameSteps`). Every node
    with ranks must have sampled the GPUs of its ranks.

    Each power sensor must have been read from before the first measured step until after the last
    one. A gap may not be longer than 1 s, or 5 periods if that is longer, unless the driver's own
    samples fill it. The sensor must not be frozen, and must agree with an energy counter that moves
    (:mod:`workflow_lib.telemetry.validity.sensors`). A run whose sampling rates alternated has no
    energy, so only its sampling blocks must cover the measured steps.
    """
    try:
        window = _measured_window(paths, cell)
        _check_nodes_apart(window.ranks)
        for node in sorted(window.ranks):
            start = _check_node(paths, cell, node, window)
            _check_clock(paths, cell, node, window)
            span = (window.start_unix_s, window.end_unix_s)
            if cell.telemetry.interleaved_rates_hz:
                _check_blocks(paths.sampler_blocks(node), span)
            else:
                check_sensors(paths, start, _power_sensors(start, cell), span)
    except InvalidTelemetryError as error:
        return str(error)
    except RecordError as error:
        return f"{error}."
    except FileNotFoundError as error:
        return f"{error.filename} is missing."
    return None


def _measured_window(paths: RunPaths, cell: Cell) -> _Window:
    start, end = math.inf, -math.inf
    ranks: dict[str, list[RankRecord]] = {}
    same_steps = SameSteps(paths, cell)
    for rank in range(cell.degrees.world_size):
        record = read_record(paths.rank(rank), RankRecord)
        rank_start, rank_end = _measured_steps(paths.rank_steps(rank), cell, record, same_steps)
        start, end = min(start, rank_start), max(end, rank_end)
        ranks.setdefault(record.node, []).append(record)
    if len(ranks) != cell.nodes:
        nodes = ", ".join(sorted(ranks))
        raise InvalidTelemetryError(
            f"The ranks ran on {counted(len(ranks), 'node')} ({nodes}), not on {cell.nodes}."
        )
    return _Window(start, end, ranks)


def _check_clock(paths: RunPaths, cell: Cell, node: str, window: _Window) -> None:
    """Raise InvalidTelemetryError unless the node's clock was compared with rank 0's, to within a
    hundredth of a step. Earlier versions did not compare clocks; their runs pass. They did not
    record precisions either.
    """
    clock = read_if_there(paths.clock(node), NodeClock)
    if clock is None:
        is_earlier = any(rank.precisions is None for rank in window.ranks[node])
        if len(window.ranks) > 1 and not is_earlier:
            raise InvalidTelemetryError(
                f"{paths.clock(node)} is missing, which compares the clock of node {node} with "
                "that of rank 0."
            )
        return
    if clock.reason:
        raise InvalidTelemetryError(f"Node {node}: {clock.reason}.")
    step_s = (window.end_unix_s - window.start_unix_s) / cell.training.measured_steps
    if clock.error_s > _LARGEST_CLOCK_ERROR * step_s:
        raise InvalidTelemetryError(
            f"The clock of node {node} may be {1e3 * clock.error_s:.3g} ms off that of rank 0, "
            f"once its skew of {1e3 * clock.skew_s:.3g} ms and its drift are corrected: more than "
            f"a hundredth of a step of {step_s:.3g} s. It was set during the run, or the network "
            "is too slow to compare clocks; keep NTP or chrony from setting clocks in jobs."
        )


def _measured_steps(
    path: Path, cell: Cell, rank: RankRecord, same_steps: SameSteps
) -> tuple[float, float]:
    """The start of a rank's first measured step and the end of its last one, in Unix time."""
    expected = cell.training.warmup_steps
    before = -math.inf
    start = end = math.nan
    for line, row in read_csv(path, STEPS):
        started, ended = row["started_unix_s"], row["ended_unix_s"]
        if not isinstance(started, float) or not isinstance(ended, float):
            raise InvalidTelemetryError(f"{path}, line {line}: the step has no start or no end.")
        if started > ended or started < before:
            raise InvalidTelemetryError(f"{path}, line {line}: the clock went backwards.")
        before = ended
        if row["phase"] != "measured":
            continue
        if row["step"] != expected:
            raise InvalidTelemetryError(
                f"{path}, line {line}: step {row['step']}, expected {expected}."
            )
        if expected == cell.training.warmup_steps:
            start = started
        end = ended
        same_steps.note(rank, expected, started, ended)
        expected += 1
    measured = expected - cell.training.warmup_steps
    if measured != cell.training.measured_steps:
        raise InvalidTelemetryError(
            f"{path} holds {measured} of {cell.training.measured_steps} measured steps."
        )
    return start, end


def _check_node(paths: RunPaths, cell: Cell, node: str, window: _Window) -> TelemetryStart:
    path = paths.telemetry_start(node)
    if not path.exists():
        raise InvalidTelemetryError(f"Node {node} has no telemetry ({path} is missing).")
    start = read_record(path, TelemetryStart)
    check_same_run(path, start, window.ranks[node])
    count = len(start.gpus)
    if cell.telemetry.source not in ("auto", start.source):
        raise InvalidTelemetryError(
            f"{path}: telemetry came from {start.source!r}, not from {cell.telemetry.source!r}."
        )
    if count < cell.ranks_per_node:
        raise InvalidTelemetryError(
            f"{path}: of {counted(cell.ranks_per_node, 'GPU')} that ranks used, {count} had "
            "samples."
        )
    ranks = window.ranks[node]
    trained = [rank for rank in ranks if rank.on_gpu]
    if start.simulated and trained:
        raise InvalidTelemetryError(
            f"{path}: the readings are simulated, but node {node} trained on GPUs."
        )
    if not start.simulated and len(trained) < len(ranks):
        raise InvalidTelemetryError(
            f"{path}: the readings are of real GPUs, but node {node} trained on its CPU: install a "
            "torch build that can use the GPUs, or set the platform's telemetry to simulated."
        )
    _check_gpus(path, start, trained)
    if not start.simulated:
        for gpu, entry in enumerate(start.gpus):
            if why := gpu_models.mismatch(cell.hardware.gpu, str(entry.get("name"))):
                raise InvalidTelemetryError(f"{path}: GPU {gpu}: {why}.")
    return start


def _check_gpus(path: Path, start: TelemetryStart, ranks: Sequence[RankRecord]) -> None:
    """Raise InvalidTelemetryError if a rank's GPU was not sampled, or if two ranks share a GPU."""
    taken: dict[int, int] = {}
    for rank in ranks:
        gpu = start.number_of(rank)
        if gpu is None:
            raise InvalidTelemetryError(
                f"{path}: rank {rank.rank} trained on {rank.gpu_identity}, which is none of the "
                f"{counted(len(start.gpus), 'GPU')} with samples."
            )
        if gpu >= len(start.gpus):
            raise InvalidTelemetryError(
                f"{path}: GPU {gpu} trained, but only {len(start.gpus)} were sampled."
            )
        if gpu in taken:
            raise InvalidTelemetryError(
                f"{path}: ranks {taken[gpu]} and {rank.rank} trained on the same GPU, {gpu}."
            )
        taken[gpu] = rank.rank


def _check_nodes_apart(ranks: Mapping[str, Sequence[RankRecord]]) -> None:
    """Raise InvalidTelemetryError if ranks on two nodes trained on one GPU, whose energy would be
    counted twice: nodes that are emulated on one host can be given the same one.
    """
    taken: dict[str, RankRecord] = {}
    for rank in (rank for node in sorted(ranks) for rank in ranks[node]):
        if rank.gpu_uuid is None:
            continue
        other = taken.setdefault(rank.gpu_uuid.casefold(), rank)
        if other.node != rank.node:
            raise InvalidTelemetryError(
                f"Ranks {other.rank} on {other.node} and {rank.rank} on {rank.node} trained on the "
                f"same GPU, {rank.gpu_uuid}: the two nodes are one machine. Give each node GPUs of "
                "its own in Slurm's gres.conf."
            )


def _power_sensors(start: TelemetryStart, cell: Cell) -> list[int]:
    """The GPUs that report power; on MI250 this is one die of each package."""
    size = cell.hardware.gpus_per_package
    return [gpu for gpu in range(len(start.gpus)) if start.power_sensor(gpu, size) == gpu]


def _check_blocks(path: Path, window: tuple[float, float]) -> None:
    """Raise InvalidTelemetryError if sampling blocks do not cover the window, but for short pauses.

    A block has a row only once it has ended. A block without a row may be a crash, so it does not
    count.
    """
    start_s, end_s = window
    covered_s: float | None = None
    for line, row in read_csv(path, SAMPLER_BLOCKS):
        began, ended = row["started_unix_s"], row["ended_unix_s"]
        if not isinstance(began, float) or not isinstance(ended, float) or ended < began:
            raise InvalidTelemetryError(f"{path}, line {line}: the block has no start or no end.")
        if covered_s is None and began > start_s:
            raise InvalidTelemetryError(
                f"{path}: the first sampling block begins {began - start_s:.1f} s after the start "
                "of the measured steps."
            )
        if covered_s is not None and start_s < began and covered_s < end_s:
            if began < covered_s:
                raise InvalidTelemetryError(f"{path}, line {line}: the clock went backwards.")
            if began - covered_s > _LONGEST_PAUSE_S:
                raise InvalidTelemetryError(
                    f"{path}, line {line}: no sampling block for {began - covered_s:.1f} s within "
                    f"the measured steps, where {_LONGEST_PAUSE_S:.1f} s is allowed."
                )
        covered_s = ended
    if covered_s is None:
        raise InvalidTelemetryError(f"{path} holds no sampling block.")
    if covered_s < end_s:
        raise InvalidTelemetryError(
            f"{path}: the last sampling block ends {end_s - covered_s:.1f} s before the end of the "
            "measured steps."
        )
