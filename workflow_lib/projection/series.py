"""Series of published runs, which differ in nodes and batch alone."""

from __future__ import annotations

from collections.abc import Iterable

from workflow_lib.projection.published import OF_A_RUN, PublishedRun, unnumbered

#: rows with the same number of GPUs and the same batch are of one series if their times differ by
#: at most this share
_SAME = 0.02


def series(rows: Iterable[PublishedRun]) -> list[list[PublishedRun]]:
    """Rows in series, each sorted by the number of GPUs. If rows with one key have different times
    for the same number of GPUs and batch, the other parts of the notes, without numbers, separate
    series."""
    groups: dict[tuple[object, ...], list[PublishedRun]] = {}
    for row in rows:
        groups.setdefault(row.series_key, []).append(row)
    found = []
    for group in groups.values():
        parted: dict[object, list[PublishedRun]] = {}
        if _clash(group):
            for row in group:
                parted.setdefault(_told(row), []).append(row)
        else:
            parted[""] = group
        found += [sorted(each, key=lambda row: (row.gpus, row.line)) for each in parted.values()]
    return found


def _clash(group: list[PublishedRun]) -> bool:
    times: dict[tuple[int, int | None], list[float]] = {}
    for row in group:
        if row.step_time_s:
            times.setdefault((row.gpus, row.global_batch), []).append(row.step_time_s)
    return any(max(each) > min(each) * (1 + _SAME) for each in times.values())


def _told(row: PublishedRun) -> tuple[str, ...]:
    return tuple(sorted(unnumbered(part) for part in row.parts if not OF_A_RUN.match(part)))
