"""Like figure 5 of arXiv 2509.10371: a heat map of every GPU's traffic, but only over its links.

That figure shows PCIe as well. Its counters have 32 bits, which overflow in a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from workflow_lib.report.cells import Row
from workflow_lib.report.figures.gaps import reasons_of_gpus
from workflow_lib.report.figures.heat_map import ROWS, Panel, heat_map, means
from workflow_lib.report.figures.kind import Division, FigureKind, by_platform_and_model
from workflow_lib.report.tables import Tables

#: the columns of GPUS of both directions
_LINKS = ("gpu_link_received_bytes", "gpu_link_sent_bytes")


def _divide(tables: Tables) -> Iterator[Division[Row]]:
    """The feasible cells of a platform and model."""
    durations = {(run["cell"], run["run"]): run["measured_duration_s"] for run in tables.runs}
    for platform, model, cells in by_platform_and_model(tables.cells):
        feasible = [cell for cell in cells if cell["outcome"] != "infeasible"]
        chosen = {cell["cell"] for cell in feasible}
        gpus = [gpu for gpu in tables.gpus if gpu["cell"] in chosen]
        if panels := _panels(gpus, durations):
            yield Division(
                f"{model} on {platform}",
                (platform, model),
                feasible,
                "One column for each GPU, node by node, as in figure 5 of arXiv 2509.10371. Values "
                "are the bytes sent and received in the measured steps, divided by their duration, "
                "as means over completed runs. Hatched fields have no values.",
                partial(heat_map, gpus=gpus, panels=panels),
            )


def _why_not(tables: Tables) -> str:
    """Why there is no such figure."""
    return reasons_of_gpus(tables.gpus, _LINKS)


def _panels(gpus: Sequence[Row], durations: Mapping[tuple[str, int], float | None]) -> list[Panel]:
    """The panel, if it has a value."""
    values = means(gpus, partial(_gb_per_s, durations))
    return [Panel("NVLink, in and out", "GB/s", "viridis", values)] if values else []


def _gb_per_s(durations: Mapping[tuple[str, int], float | None], gpu: Row) -> float | None:
    duration_s = durations.get((gpu["cell"], gpu["run"]))
    counts = [gpu[name] for name in _LINKS]
    return None if None in counts or not duration_s else sum(counts) / duration_s / 1e9


KIND = FigureKind(
    stem="traffic",
    subject="Traffic of every GPU over NVLink",
    title="traffic of every GPU",
    about="What each GPU sent and received (GB/s) over NVLink.",
    limits="Hatched fields have no values.",
    most=ROWS,
    divide=_divide,
    why_not=_why_not,
)
