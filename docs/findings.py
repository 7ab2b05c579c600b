"""The pages of docs/results: what the rebuilt evidence says. No number of them is typed by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from workflow_lib.comparison.matching import NAMED, Pair
from workflow_lib.comparison.sides import Side, read_sides
from workflow_lib.comparison.verdicts import rows, told
from workflow_lib.records import MEASURES, SweepPaths
from workflow_lib.report.cells import Row, completed
from workflow_lib.report.intervals import interval_in_words
from workflow_lib.report.labels import labels
from workflow_lib.report.numbers import NOTHING, significant
from workflow_lib.words import counted

DIRECTORY = Path(__file__).parent / "results"
PAGE = DIRECTORY / "llama3-8b-on-two-h200.md"
LAYOUTS, OVERLAP = "evidence-llama3-8b-x2", "evidence-overlap-x2"

_SWEEPS = Path(__file__).parents[1] / "config" / "sweeps"

_SHOWN = (
    "tokens_per_s_per_gpu",
    "power_per_gpu_mean_w",
    "tokens_per_j",
    "memory_used_peak_bytes",
    "mfu_causal",
)
_CONTRASTED = ("tokens_per_s_per_gpu", "power_per_gpu_mean_w", "tokens_per_j", "temperature_mean_c")
#: figures of the sweeps: the stem, and what it shows
_FIGURES = {
    LAYOUTS: ("parallelism-llama3-8b", "Temperature, power, clock, efficiency and throughput"),
    OVERLAP: ("optimisation-h200x2-llama3-8b", "The same cells without and with overlap"),
}


def files(rebuilt: Path) -> dict[Path, str]:
    """Every file of docs/results, from the rebuilt archives: its path and its text."""
    found = {
        DIRECTORY / "images" / f"{sweep}.svg": (
            _directory(rebuilt, sweep) / "figures" / f"{stem}.svg"
        ).read_text(encoding="utf-8")
        for sweep, (stem, _) in _FIGURES.items()
    }
    return {PAGE: page(rebuilt), **found}


def _directory(rebuilt: Path, sweep: str) -> Path:
    return SweepPaths(rebuilt / sweep / "results" / "sweeps" / sweep).directory


def _sides(rebuilt: Path) -> tuple[Side, Side]:
    return read_sides(_directory(rebuilt, LAYOUTS), _directory(rebuilt, OVERLAP), ("A", "B"))


def _named(side: Side) -> dict[str, str]:
    """The label of each cell."""
    return dict(zip((c["cell"] for c in side.cells), labels(side.cells, short=True), strict=True))


def headline(rebuilt: Path) -> str:
    """The one sentence that the README opens with, of the fastest layout and the next."""
    layouts, _ = _sides(rebuilt)
    named = _named(layouts)
    first, second, *_ = _by_speed(layouts.cells)
    (row,) = (
        r for r in _contrasts([(first, second)], layouts) if r["measure"] == "tokens_per_s_per_gpu"
    )
    if not told(row):
        raise ValueError(f"the fastest layout is not told apart: {row['in_words']}")
    return (
        f"On {first['gpus']} {first['gpu_name']} of one host, {first['completed']} runs each, "
        f"`{named[first['cell']]}` trains Llama 3 8B fastest of {len(layouts.cells)} layouts: "
        f"{_number(first, 'tokens_per_s_per_gpu')} tokens/s a GPU, {_percent(row)} more than the "
        f"next, `{named[second['cell']]}`."
    )


def _percent(row: Row) -> str:
    low, high = ((row[end] - 1) * 100 for end in ("low", "high"))
    return f"{significant(low, 2)} to {significant(high, 2)} %"


def page(rebuilt: Path) -> str:
    """What four layouts and overlap gave on two GPUs."""
    layouts, overlap = _sides(rebuilt)
    ordered = _by_speed(layouts.cells)
    pairs = [(ordered[0], other) for other in ordered[1:]]
    # Without overlap first, so that a gain of overlap has a plus.
    of_overlap = [
        (on, off)
        for on in overlap.cells
        for off in overlap.cells
        if on["overlap"] and not off["overlap"] and on["parallelism"] == off["parallelism"]
    ]
    parts = [
        "<!-- Made by `python -m docs.evidence --write` from the archives in evidence/. -->",
        "# Llama 3 8B on two H200",
        f"{headline(rebuilt)} One model, one host, one day: it says nothing of other models, hosts "
        "or numbers of GPUs.",
        _made(layouts, overlap),
        "## Layouts",
        _table_of(layouts, ordered),
        _note(layouts),
        _figure(LAYOUTS),
        "## What the differences between layouts support",
        _words(layouts, pairs),
        "## Overlap, off and on",
        _table_of(overlap, list(overlap.cells)),
        _figure(OVERLAP),
        _words(overlap, of_overlap),
        "## What is missing",
        _missing([layouts, overlap]),
        "## Make this page again",
        "`make evidence` checks the raw files in [the archives](../../evidence/README.md) against "
        "their checksums, and makes every table, figure and page from them, without torch and "
        "without a GPU. `rebuilt/evidence/` then holds a report of each sweep, with all measures, "
        "every run, and why a measure is missing.",
    ]
    return "\n\n".join(parts) + "\n"


def _made(layouts: Side, overlap: Side) -> str:
    """When, with what and on what."""
    before = {(run["cell"], run["run"]) for run in layouts.runs}
    more = [run for run in overlap.runs if (run["cell"], run["run"]) not in before]
    cell = layouts.cells[0]
    environment = {
        key: ", ".join(value for value, _ in values)
        for side in (layouts, overlap)
        if side.environment
        for key, values, _ in side.environment["rows"]
    }
    return (
        f"{_begun(layouts.runs)} are of `{LAYOUTS}`, submitted in random order in blocks of one "
        f"run of each cell. {_begun(more)} are what `{OVERLAP}` needs besides them. All went "
        f"through Slurm. A run has {cell['warmup_steps']} steps of warm-up and "
        f"{cell['measured_steps']} measured ones, of {cell['global_batch_size']} sequences of "
        f"{cell['sequence_length']} tokens, in micro-batches of {cell['micro_batch_size']}; "
        f"{cell['precision']}, compiled layers. Power limit {_number(cell, 'power_limit_w')} W, "
        f"driver {environment['nvidia_driver']}, torch {environment['packages.torch']}. "
        f"{_code(environment)}"
    )


def _code(environment: Mapping[str, str]) -> str:
    """Which code ran, as far as the runs recorded it."""
    changed = environment["uncommitted_changes"] != "False"
    rest = (
        ", with changes that were not committed: it does not say which code ran" if changed else ""
    )
    return f"The commit that runs recorded is {environment['commit'][:12]}{rest}."


def _begun(runs: Sequence[Row]) -> str:
    """How many runs there are, completed ones among them, and when these began."""
    done = [run for run in runs if run["outcome"] == "completed"]
    began = sorted(datetime.fromtimestamp(run["started_unix_s"], UTC) for run in done)
    return (
        f"{counted(len(runs), 'run')} ({len(done)} completed, begun {began[0]:%Y-%m-%d %H:%M} to "
        f"{began[-1]:%H:%M} UTC)"
    )


def _steadiness(side: Side) -> str:
    """In how many runs a drift was told from noise."""
    done = [run for run in side.runs if run["outcome"] == "completed"]
    drifts = [run["step_time_drift"] * 100 for run in done if not run["steady"]]
    told_of = f"{len(done) - len(drifts)} of {counted(len(done), 'completed run')} were steady"
    if not drifts:
        return f"{told_of}."
    low, high = significant(min(drifts), 2), significant(max(drifts), 2)
    return (
        f"{told_of}; in the others step time drifted within the measured steps, by {low} to "
        f"{high} %. All measured steps count even so."
    )


def _by_speed(cells: Iterable[Row]) -> list[Row]:
    done = [cell for cell in cells if completed(cell)]
    return sorted(done, key=lambda cell: -float(cell["tokens_per_s_per_gpu"]))


def _number(cell: Row, name: str, end: str = "") -> str:
    measure = MEASURES[name]
    value = cell[name + end]
    return NOTHING if value is None else significant(value * measure.factor, 4)


def _table_of(side: Side, cells: Sequence[Row]) -> str:
    named = _named(side)
    heads = [f"{MEASURES[n].heading}, {MEASURES[n].people_unit}" for n in _SHOWN]
    lines = [f"| cell | {' | '.join(heads)} | runs |", "|---" * (len(heads) + 2) + "|"]
    for cell in cells:
        values = [_value(cell, name) for name in _SHOWN]
        number = f"{cell['completed']} of {cell['repeats']}"
        lines.append(f"| `{named[cell['cell']]}` | {' | '.join(values)} | {number} |")
    return "\n".join(lines)


def _value(cell: Row, name: str) -> str:
    text = _number(cell, name)
    if name == "memory_used_peak_bytes" and cell[name] == cell["memory_reserved_peak_bytes"]:
        text = f"at least {text}"
    ends = [_number(cell, name, end) for end in ("_low", "_high")]
    if cell["completed"] < 2 or cell[name] is None:
        return text
    return f"{text} ({'–'.join(ends)})" if ends[0] != ends[1] else text


def _note(side: Side) -> str:
    return (
        f"Medians over completed runs; in brackets {interval_in_words(side.cells)}, left out where "
        "all have the same four digits: no confidence interval. Power and tokens/J come from the "
        'GPUs\' own sensors, whose error is unknown. Memory used is a lower bound, "at least", '
        "where the driver was asked after torch's allocator had given memory back. "
        "[Measurement](../explanation/measurement.md) says what each measure is. "
        f"{_steadiness(side)}"
    )


def _figure(sweep: str) -> str:
    _, about = _FIGURES[sweep]
    return (
        f"![{about}](images/{sweep}.svg)\n\n"
        f"*{about}: markers and bars are medians, whiskers the range of the runs.*"
    )


def _contrasts(pairs: Sequence[tuple[Row, Row]], side: Side) -> list[Row]:
    """The comparison's own rows of pairs of cells of one sweep."""
    a, b = dataclasses.replace(side, name="the first"), dataclasses.replace(side, name="the second")
    found = rows([Pair(NAMED, one, other) for one, other in pairs], a, b)
    return [row for row in found if row["measure"] in _CONTRASTED]


def _words(side: Side, pairs: Sequence[tuple[Row, Row]]) -> str:
    named = _named(side)
    found = _contrasts(pairs, side)
    lines = ["| the first | the second | measure | what the runs support |", "|---|---|---|---|"]
    for row in found:
        heading = MEASURES[row["measure"]].heading
        a, b = named[row["cell_a"]], named[row["cell_b"]]
        lines.append(f"| `{a}` | `{b}` | {heading} | {row['in_words']} |")
    assumed = {
        f"- `{named[row['cell_a']]}` and `{named[row['cell_b']]}`: {row['assumes']}."
        for row in found
        if row["assumes"]
    }
    return "\n".join([*lines, "", "What each pair is judged under:", "", *sorted(assumed)])


def _missing(sides: Sequence[Side]) -> str:
    lines = []
    for side in sides:
        named = _named(side)
        for run in side.runs:
            if run["outcome"] != "completed":
                told_of = f"run {run['run']} of `{named[run['cell']]}` (`{side.sweep}`)"
                lines.append(f"- {told_of}: {run['outcome'].replace('_', ' ')}, {run['cause']}.")
    measured = {side.sweep for side in sides}
    for path in sorted(_SWEEPS.glob("evidence-*.yaml")):
        if path.stem not in measured:
            lines.append(f"- `{path.stem}`: no run of it has been measured.")
    return "\n".join(lines)
