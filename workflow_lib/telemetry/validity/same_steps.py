"""Checks whether the ranks' clocks agree well enough to compare their steps.

Ranks that exchange data in a step run it at the same time: no rank can end it before all have begun
it. If the recorded times, after correction of the clocks, say otherwise, the clocks are wrong. Step
times would then be too long, because a step lasts from its start on the first rank to its end on
the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_if_there
from workflow_lib.records.nodes import NodeClock, TelemetryStart
from workflow_lib.records.paths import RunPaths
from workflow_lib.telemetry.validity import InvalidTelemetryError


def check_same_run(path: Path, start: TelemetryStart, ranks: Sequence[RankRecord]) -> None:
    """Compare the node, job and boot id in the sampler's record ``start`` with those of ``ranks``.

    ``path`` is the file of ``start``; ``ranks`` are the ranks of its node. A value that one side
    lacks is not compared. Raises InvalidTelemetryError.
    """
    ranks = sorted(ranks, key=lambda each: each.rank)
    if any(start.node != rank.node for rank in ranks):
        raise InvalidTelemetryError(f"{path} is of node {start.node!r}.")
    for each in ranks:
        for what, sampled, trained in (
            ("job", start.job_id, each.job_id),
            ("start of the machine, boot id", start.boot_id, each.boot_id),
        ):
            if sampled is not None and trained is not None and sampled != trained:
                raise InvalidTelemetryError(
                    f"{path} is not of this run: it was sampled in {what} {sampled}, but rank "
                    f"{each.rank} trained in {what} {trained}. Run the cell again."
                )


@dataclass
class _Step:
    """The last rank to begin a step and the first to end it, of the ranks noted so far."""

    began_unix_s: float
    began: RankRecord
    ended_unix_s: float
    ended: RankRecord


class SameSteps:
    """Compares the steps of all ranks, which are noted rank by rank."""

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
            raise InvalidTelemetryError(
                f"Rank {early.rank} on {early.node} ended step {step} {apart_s:.3f} s before rank "
                f"{late.rank} on {late.node} began it, by their clocks: these differ by more than "
                "a step takes. Have the nodes' clocks synchronised (chronyc tracking), and run the "
                "cell again."
            )

    def _clock(self, node: str) -> NodeClock | None:
        """The record of a node's clock; None in runs on one node or of earlier versions."""
        if node not in self._clocks:
            self._clocks[node] = read_if_there(self._paths.clock(node), NodeClock)
        return self._clocks[node]
