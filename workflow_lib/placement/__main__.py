"""``python -m workflow_lib.placement``: which GPUs are slow, and whether to place work by that."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workflow_lib import __version__
from workflow_lib.intervals.differences import Interval
from workflow_lib.options import add_config, ends_quietly
from workflow_lib.placement import jobs, readings, slots, sweep, text
from workflow_lib.placement.advice import advise
from workflow_lib.placement.effects import Place, as_share
from workflow_lib.placement.readings import place_name
from workflow_lib.placement.slots import Characterisation
from workflow_lib.placement.sweep import record
from workflow_lib.records.reading import RecordError
from workflow_lib.records.verdict_tables import SLOTS
from workflow_lib.records.whole_files import report_error, whole_file, write_json
from workflow_lib.report.figures import style
from workflow_lib.report.figures.embedding import drawn_for_page
from workflow_lib.report.figures.html import page_templates
from workflow_lib.report.figures.kind import FigureEntry
from workflow_lib.report.figures.style import marks
from workflow_lib.study import ConfigError, load_study
from workflow_lib.table_files import table as frame
from workflow_lib.table_files import write_table


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_slots(commands)
    _add_place(commands)
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.placement"
) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    chosen = command_line(prog).parse_args(arguments)
    try:
        chosen.run(chosen)
    except (ConfigError, RecordError, OSError) as error:
        return report_error("placement", error)
    return 0


def _add_slots(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("slots", help="list GPUs by what goes with them")
    parser.add_argument(
        "directory", type=Path, help="of a sweep, as results/sweeps/slots, or with measured jobs"
    )
    parser.add_argument("--output", type=Path, help="directory for what is written; of a sweep")
    parser.add_argument(
        "--behind",
        type=float,
        default=slots.BEHIND,
        help="name GPUs that are surely so much slower than the mean (default: %(default)s)",
    )
    parser.set_defaults(run=_slots)


def _slots(chosen: argparse.Namespace) -> None:
    if jobs.are_in(chosen.directory):
        _slots_of_jobs(chosen)
        return
    if chosen.output is None:
        raise RecordError(
            f"{chosen.directory} has no measured jobs, or is not there; for the directory of a "
            "sweep give --output"
        )
    measured = readings.read(chosen.directory)
    characterisation = slots.characterise(measured, chosen.behind)
    simulated = any(run.simulated for run in measured.runs)
    cells = [run.cell for run in measured.runs]
    sentences = [*text.of_emulated(cells), *text.slots_sentences(characterisation, simulated)]
    lines = text.slots_table(characterisation)
    chosen.output.mkdir(parents=True, exist_ok=True)
    write_table(frame(characterisation.rows, SLOTS), chosen.output / "slots.parquet")
    rows = ({"simulated": run.simulated, "emulated": run.cell.emulated} for run in measured.runs)
    figure = _slots_figure(characterisation, measured.sweep, marks(rows))
    written = _write_page(
        chosen.output,
        "slots",
        "GPUs and slots",
        f"GPUs of {measured.sweep}",
        sentences,
        "GPUs, the slowest first",
        lines,
        [figure],
    )
    print("\n".join([text.table(lines), "", *sentences, "", str(written)]))


def _add_place(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("place", help="say whether to place a cell's work by its GPUs")
    parser.add_argument(
        "sweep", type=Path, help="directory of the sweep that was run, as results/sweeps/slots"
    )
    parser.add_argument("--output", type=Path, required=True, help="directory for what is written")
    parser.add_argument("--cell", required=True, help="its id, a cell of the sweep")
    parser.add_argument("--nodes", help="of several nodes that ran apart, these: a,b")
    add_config(parser)
    parser.add_argument(
        "--write", type=Path, help="where the sweep that tries a placement goes, if one is advised"
    )
    parser.set_defaults(run=_place)


def _slots_of_jobs(chosen: argparse.Namespace) -> None:
    fleet = jobs.survey(chosen.directory, chosen.behind)
    if chosen.output is not None:
        chosen.output.mkdir(parents=True, exist_ok=True)
        with whole_file(chosen.output / "slots.jsonl") as draft:
            lines = "".join(json.dumps(row) + "\n" for row in fleet.rows)
            draft.write_text(lines, encoding="utf-8")
    print("\n".join(jobs.lines_of(fleet)))


def _place(chosen: argparse.Namespace) -> None:
    measured = readings.read(chosen.sweep)
    advice = advise(measured, chosen.cell, chosen.nodes.split(",") if chosen.nodes else ())
    study = load_study(chosen.config)
    plain = sweep.described(study, advice)
    placed = sweep.placed_cell(study, advice.cell, plain)
    sentences = text.advice_sentences(advice)
    if advice.is_worth_a_try and placed.reason is not None:
        sentences.append(f"It cannot be tried, and no sweep is written: {placed.reason}.")
    elif advice.is_worth_a_try and chosen.write is not None:
        sweep.write(plain, chosen.write)
        sentences.append(f"{chosen.write} has the cell as it is and as placed, in turns.")
    chosen.output.mkdir(parents=True, exist_ok=True)
    write_json(chosen.output / "placement.json", record(advice, placed.cell.id, measured.sweep))
    title = f"Placement of {advice.cell.model.name} on {advice.cell.hardware.platform}"
    written = _write_page(chosen.output, "placement", "placement", title, sentences)
    print("\n".join([*sentences, "", str(written)]))


_TEMPLATES = page_templates("workflow_lib.placement", "workflow_lib.report")
#: inches of a GPU's line, and of the title and the axes' labels
_LINE_IN, _REST_IN = 0.16, 0.85


def _write_page(
    output: Path,
    stem: str,
    kind: str,
    title: str,
    sentences: Sequence[str],
    heading: str = "",
    lines: Sequence[dict[str, str]] = (),
    entries: Sequence[FigureEntry] = (),
) -> Path:
    """Write ``<stem>.html`` and its figures into a directory; returns the page's path."""
    text = _TEMPLATES.get_template("placement.html.j2").render(
        version=__version__,
        kind=kind,
        title=title,
        sentences=sentences,
        heading=heading,
        lines=lines,
        figures=drawn_for_page(entries, output / "figures"),
    )
    page = output / f"{stem}.html"
    with whole_file(page) as draft:
        draft.write_text(text, encoding="utf-8")
    return page


def _slots_figure(characterisation: Characterisation, sweep: str, marked: str) -> FigureEntry:
    """Each GPU's clock and temperature from the mean, the fastest at the top; ``marked`` is what
    :func:`style.marks` found."""
    return FigureEntry(
        stem="slots",
        title="GPUs side by side",
        caption=(
            f"Of {sweep}: each GPU's clock and core temperature less the mean over all GPUs, "
            "without what goes with the stage. Bars are 90 % intervals. The line marks "
            f"{100 * characterisation.threshold:g} % below the mean."
        ),
        draw=partial(_draw_slots, characterisation, marked),
    )


def _draw_slots(characterisation: Characterisation, marked: str) -> Figure:
    places = sorted(
        characterisation.clocks, key=lambda place: characterisation.clocks[place].estimate
    )
    figure = Figure(figsize=(style.COLUMN_IN, _REST_IN + _LINE_IN * max(len(places), 3)))
    left, right = figure.subplots(1, 2, sharey=True)
    clocks = [as_share(characterisation.clocks[place]) for place in places]
    _points(left, places, clocks, 100.0)
    left.axvline(-100 * characterisation.threshold, color=style.GREY, linestyle=":", linewidth=0.8)
    left.set_xlabel("clock, from the mean (%)")
    left.set_yticks(range(len(places)), labels=[place_name(place) for place in places])
    left.set_ylim(-0.6, len(places) - 0.4)
    _points(right, places, [characterisation.temperatures[place] for place in places], 1.0)
    right.set_xlabel("temperature (°C)")
    style.title(figure, "GPUs side by side", marked)
    return figure


def _points(axes: Axes, places: Sequence[Place], effects: Sequence[Interval], scale: float) -> None:
    values = [scale * effect.estimate for effect in effects]
    below = [scale * (effect.estimate - effect.low) for effect in effects]
    above = [scale * (effect.high - effect.estimate) for effect in effects]
    axes.axvline(0, color=style.GREY, linewidth=0.6)
    axes.errorbar(
        values,
        range(len(places)),
        xerr=[below, above],
        fmt="o",
        color=style.BLUE,
        markersize=3,
        capsize=2,
        linewidth=0.9,
    )


if __name__ == "__main__":
    sys.exit(main())
