"""Series of published runs, which differ in nodes and batch alone."""

from __future__ import annotations

from collections.abc import Iterable

from workflow_lib.projection.published import OF_A_RUN, PublishedRun, unnumbered


def series(rows: Iterable[PublishedRun]) -> list[list[PublishedRun]]:
    """Rows in series, each sorted by the number of GPUs. If rows with one key tell different things
    of the same number of GPUs and batch, the other parts of the notes, without numbers, separate
    series. Times have no part in this, because series decide which rows a fold fits."""
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
        found += [sorted(each, key=lambda row: (row.gpus, row.order)) for each in parted.values()]
    return found


def _clash(group: list[PublishedRun]) -> bool:
    told: dict[tuple[int, int | None], set[tuple[str, ...]]] = {}
    for row in group:
        told.setdefault((row.gpus, row.global_batch), set()).add(_told(row))
    return any(len(each) > 1 for each in told.values())


def _told(row: PublishedRun) -> tuple[str, ...]:
    return tuple(sorted(unnumbered(part) for part in row.parts if not OF_A_RUN.match(part)))
