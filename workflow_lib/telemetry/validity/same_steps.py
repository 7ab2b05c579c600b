"""Whether the ranks' clocks agree so far that their steps can be compared.

Ranks that exchange data in a step are in it at the same time: none can end it before all have begun
it. Where the records say otherwise, clocks differ by more than a step takes, and step times, which
reach from the first rank's beginning to the last one's end, would be too long.
"""

from __future__ import annotations

from dataclasses import dataclass

from workflow_lib.records import Cell, RankRecord
from workflow_lib.telemetry.validity.csv_rows import InvalidTelemetryError


@dataclass
class _Step:
    """Of the ranks noted so far, the last to begin and the first to end."""

    began_unix_s: float
    began: RankRecord
    ended_unix_s: float
    ended: RankRecord


class SameSteps:
    """The steps of all ranks, as they are noted rank by rank."""

    def __init__(self, cell: Cell) -> None:
        self._inference = cell.training.workload == "inference"
        self._steps: dict[tuple[tuple[int, ...], int], _Step] = {}

    def note(self, rank: RankRecord, step: int, began_unix_s: float, ended_unix_s: float) -> None:
        """Add a step of a rank. Raises InvalidTelemetryError where another rank's cannot be true
        beside it.
        """
        # All ranks that train exchange gradients; replicas that generate exchange nothing, and the
        # first stage of a pipeline need not wait for the last.
        group = (rank.dp_rank, rank.pp_rank) if self._inference else ()
        noted = self._steps.setdefault((group, step), _Step(began_unix_s, rank, ended_unix_s, rank))
        if began_unix_s > noted.began_unix_s:
            noted.began_unix_s, noted.began = began_unix_s, rank
        if ended_unix_s < noted.ended_unix_s:
            noted.ended_unix_s, noted.ended = ended_unix_s, rank
        if noted.began_unix_s > noted.ended_unix_s:
            early, late = noted.ended, noted.began
            raise InvalidTelemetryError(
                f"Rank {early.rank} on {early.node} ended step {step} "
                f"{noted.began_unix_s - noted.ended_unix_s:.3f} s before rank {late.rank} on "
                f"{late.node} began it, by their clocks: these differ by more than a step takes. "
                "Have the nodes' clocks synchronised (chronyc tracking), and run the cell again."
            )
