"""Checks whether a node's telemetry is of the same node and job as the records of its ranks.

A file with the right name may be of another run, for example if files were copied by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workflow_lib.records import RankRecord, TelemetryStart
from workflow_lib.telemetry.validity.csv_rows import InvalidTelemetryError


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
