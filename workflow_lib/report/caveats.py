"""What may have changed a cell's measurements: errors of energy, power caps, memory pressure, other
load on its nodes, another training than it should be, and what a trainer does by its own ways."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from workflow_lib.comparison.matching import work
from workflow_lib.power_errors import LEAST_ERROR_SHARE
from workflow_lib.records.cell import Cell
from workflow_lib.records.files import read_if_there
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reasons import Reason
from workflow_lib.records.training import NATIVE
from workflow_lib.report.figures.cell_names import Row, completed, completed_runs_of
from workflow_lib.report.figures.numbers import significant
from workflow_lib.results import runs_of_cell
from workflow_lib.words import counted


def _named(cell: Row, label: str) -> str:
    return f"{label} ({cell['model']} on {cell['platform']})"


def energy_errors(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each cell with runs whose energy may be off by more than 0.2 %: by how much,
    and in how many runs."""
    lines = []
    for cell, label in zip(cells, labels, strict=True):
        ended = completed_runs_of(cell, runs)
        shares = [run["energy_error_share"] for run in ended]
        off = [share for share in shares if share is not None and share > LEAST_ERROR_SHARE]
        if off:
            many = "" if len(ended) == 1 else f" in {len(off)} of {len(ended)} runs"
            lines.append(f"{_named(cell, label)}: up to ±{significant(100 * max(off), 2)} %{many}")
    return tuple(lines)


def trainers_differ(cells: Sequence[Row], results: Path) -> tuple[str, ...]:
    """A clause for each trainer of others that cells have: how it differs from this repository's
    own, as its file said when they were planned. Raises RecordError, OSError."""
    trainings = {}
    for cell in cells:
        for directory in runs_of_cell(results, cell["cell"])[:1]:
            record = read_if_there(RunPaths(directory).cell, Cell)
            if record is not None and record.training.trainer != NATIVE:
                trainings[record.training.trainer] = record.training
    unchecked = "; its tokens are those that cells ask for, which nothing checked"
    return tuple(
        f"{name} differs from {NATIVE}: {training.trainer_differs}"
        f"{unchecked if training.trainer_steps == 'hook' else ''}"
        for name, training in sorted(trainings.items())
    )


#: at the cap for at least this share of the time, at no more than this share of the limit
_MOSTLY_CAPPED, _BELOW_LIMIT = 0.9, 0.95


def capped_below_limit(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each such cell: its power, how often and for how long power reaches the limit,
    and how far the clock is held down; or why that is not known."""
    return tuple(
        f"{_named(cell, label)}: {'; '.join(_parts(cell, runs))}"
        for cell, label in zip(cells, labels, strict=True)
        if completed(cell) and _is_explained(cell)
    )


def _is_explained(cell: Row) -> bool:
    capped, drawn = cell["throttle_power_share"], cell["power_of_limit_share"]
    if capped is None or drawn is None:
        return False
    return bool(capped >= _MOSTLY_CAPPED and drawn <= _BELOW_LIMIT)


def _parts(cell: Row, runs: Sequence[Row]) -> Iterator[str]:
    yield f"at the cap for {_in_words(cell, 'throttle_power_share')}"
    yield f"draws {_in_words(cell, 'power_of_limit_share')}"
    if cell["at_power_limit_share"] is None:
        yield f"whether it is capped in bursts is not known: {_why(cell, runs)}"
    elif cell["at_power_limit_burst_s"] is None:
        yield (
            "no sample of power is within 5 % of the limit, so bursts are shorter than samples can "
            "show"
        )
    else:
        burst = significant(1000 * cell["at_power_limit_burst_s"], 2)
        share = _in_words(cell, "at_power_limit_share")
        yield f"power is within 5 % of the limit for {share}, {burst} ms at a time"
    if cell["capped_clock_share"] is not None:
        yield f"the SM clock is at {_in_words(cell, 'capped_clock_share')} while capped"


def _in_words(cell: Row, name: str) -> str:
    measure = MEASURES[name]
    return f"{significant(cell[name] * measure.factor, 3, decimals=1)} {measure.people_unit}"


def _why(cell: Row, runs: Sequence[Row]) -> Reason:
    reasons = (
        Reason.of_row(run).get("at_power_limit_share")
        for run in completed_runs_of(cell, runs)
        if run["at_power_limit_share"] is None
    )
    return next(filter(None, reasons), Reason("no_reason"))


#: losses of one training further apart than this share, and than this many times what repeats of a
#: cell differ, are no rounding
_APART_SHARE, _APART_REPEATS = 0.001, 3


def trained_otherwise(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each cell of our engine whose last losses are apart from those of all other
    cells that have to train the same: another layout is another speed, never another model. Nothing
    is said where no cell ran twice, because repeats differ, by up to 1 % after few steps."""
    same: dict[Hashable, list[tuple[str, list[float]]]] = {}
    for cell, label in zip(cells, labels, strict=True):
        losses = [run["loss_last"] for run in completed_runs_of(cell, runs)]
        known = [loss for loss in losses if loss is not None]
        if known and cell["trainer"] == NATIVE:
            group = same.setdefault((work(cell), cell["fp8_recipe"]), [])
            group.append((_named(cell, label), known))
    return tuple(line for group in same.values() for line in _apart(group))


def _apart(group: Sequence[tuple[str, list[float]]]) -> Iterator[str]:
    if all(len(losses) == 1 for _, losses in group):
        return
    repeats = max(max(losses) - min(losses) for _, losses in group)
    for name, losses in group:
        others = [loss for other, each in group if other != name for loss in each]
        if others:
            gap = max(min(losses) - max(others), min(others) - max(losses))
            if gap > max(_APART_REPEATS * repeats, _APART_SHARE * min(others)):
                yield f"{name}: {_span(losses)} nat; others {_span(others)}"


def _span(losses: Sequence[float]) -> str:
    ends = [f"{loss:.3f}" for loss in (min(losses), max(losses))]
    return " to ".join(dict.fromkeys(ends))


#: torch's allocator without any setting
_PLAIN = "native"


def short_memory(
    cells: Sequence[Row], labels: Sequence[str], runs: Sequence[Row]
) -> tuple[str, ...]:
    """A sentence for each cell with runs in whose measured steps torch's allocators gave blocks
    back to the driver, or found no memory and tried again."""
    lines = []
    for cell, label in zip(cells, labels, strict=True):
        ended = completed_runs_of(cell, runs)
        short = [run for run in ended if run["memory_pressure"]]
        if short:
            retries, frees = (
                max(run[name] or 0 for run in short)
                for name in ("allocator_retries", "allocator_frees")
            )
            lines.append(
                f"{_named(cell, label)}: up to "
                f"{counted(retries, 'allocation')} tried again and {counted(frees, 'block')} given "
                f"back in {len(short)} of {counted(len(ended), 'run')}"
            )
    return tuple(lines)


def allocators_set(cells: Sequence[Row], labels: Sequence[str]) -> tuple[str, ...]:
    """A sentence for each cell whose allocator had settings, or was another than torch's usual."""
    return tuple(
        f"{_named(cell, label)}: {cell['allocator']}"
        for cell, label in zip(cells, labels, strict=True)
        if cell["allocator"] not in (None, _PLAIN)
    )


def unused_gpus(rows: Iterable[Row], labels: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each run and node with GPUs that no rank used, and their power. ``rows`` are those
    of UNUSED_GPUS, ``labels`` maps cells to labels."""
    of_nodes: dict[tuple[str, int, str], list[str]] = {}
    for row in rows:
        power = row["power_mean_w"]
        state = "power unknown" if power is None else f"{significant(power)} W"
        if not row["watched"]:
            state += "; not part of the job, read once before training"
        key = row["cell"], row["run"], row["node"]
        of_nodes.setdefault(key, []).append(f"GPU {row['gpu']} ({state})")
    return tuple(
        f"{labels[cell]}, run {run}, {node}: {', '.join(gpus)}"
        for (cell, run, node), gpus in of_nodes.items()
    )


def shared_nodes(runs: Iterable[Row], labels: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each run on whose nodes other jobs were seen, with their largest number."""
    return tuple(
        f"{labels[run['cell']]}, run {run['run']}: "
        f"up to {counted(round(run['other_jobs_peak']), 'other job')} on a node"
        for run in runs
        if completed(run) and run["other_jobs_peak"]
    )
