"""``python -m workflow_lib.projection``: project what a model needs on more GPUs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.cells import Views, expand_study, hardware_of
from workflow_lib.options import add_config, ends_quietly
from workflow_lib.projection import part_times, twins
from workflow_lib.projection.candidates import batch
from workflow_lib.projection.collecting import collect
from workflow_lib.projection.gpu_power import levels
from workflow_lib.projection.machines import hardware_machine
from workflow_lib.projection.own_runs import SHIPPED, read_own, write_own
from workflow_lib.projection.own_stack import own_stack, shipped_stack
from workflow_lib.projection.project import (
    COOLINGS,
    Facility,
    Prices,
    indistinguishable,
    project,
    recommended,
)
from workflow_lib.projection.project import basis as basis_of
from workflow_lib.projection.project_page import (
    FABRICS,
    describe,
    fastest_by_gpus,
    figures,
    meter,
    price,
    replicas,
    write_projection,
)
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import report_error
from workflow_lib.study import ConfigError, load_study, lookup
from workflow_lib.words import counted


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_project(commands)
    _add_collect(commands)
    _add_parts(commands)
    _add_twin(commands)
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.projection"
) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    return run(command_line(prog).parse_args(arguments))


def run(chosen: argparse.Namespace) -> int:
    """Run what a subcommand set as ``run``; returns the exit code."""
    try:
        chosen.run(chosen)
    except (ConfigError, RecordError, OSError) as error:
        return report_error("projection", error)
    return 0


def count(text: str) -> int:
    """An option's whole number of at least 1. Raises ArgumentTypeError."""
    return int(_number(text, least=1, most=bounds.DIMENSION.most, whole=True))


def _above_0(text: str) -> float:
    return _number(text, least=sys.float_info.min, most=bounds.QUANTITY.most)


def _pue(text: str) -> float:
    return _number(text, least=1, most=bounds.QUANTITY.most)


def _currency(text: str) -> str:
    if not (len(text) == 3 and text.isascii() and text.isupper()):
        raise argparse.ArgumentTypeError(f"{text} is not a currency's code, as EUR is")
    return text


def _number(text: str, least: float, most: float, whole: bool = False) -> float:
    """An option's number. Raises ArgumentTypeError, which argparse prints as its one message."""
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        kind = "a whole number" if whole else "a number"
        lowest = "above 0" if 0 < least < 1 else f"of at least {least:g}"
        raise argparse.ArgumentTypeError(f"{text} is not {kind} {lowest} and at most {most:.10g}")
    return number


def _add_project(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("project", help="rank layouts of a model on so many GPUs")
    add_config(parser)
    parser.add_argument("--model", required=True, help="of config/models")
    parser.add_argument("--platform", required=True, help="of config/platforms")
    parser.add_argument(
        "--gpus", type=count, required=True, help="how many; may be more than there are"
    )
    parser.add_argument("--batch", type=count, help="sequences of a step; else 4 Mi tokens")
    parser.add_argument("--tokens", type=_above_0, default=1e12, help="of the whole training")
    parser.add_argument(
        "--runs", type=Path, default=SHIPPED, help="a file that collect wrote; else the evidence's"
    )
    add_times(parser)
    parser.add_argument("--node-rest-w", type=_above_0, help="of a node besides its GPUs, in W")
    parser.add_argument("--pue", type=_pue, help="of the facility, 1 or more; needs --node-rest-w")
    parser.add_argument(
        "--cooling", choices=COOLINGS, help="of the nodes with that --node-rest-w, to be named"
    )
    parser.add_argument("--price-per-gpu-hour", type=_above_0, help="then tokens have a price")
    parser.add_argument("--price-per-kwh", type=_above_0, help="of electricity, besides or alone")
    parser.add_argument("--currency", type=_currency, default="EUR", help="of prices; EUR if not")
    parser.add_argument("--output", type=Path, required=True, help="directory for what is written")
    parser.set_defaults(run=_project)


def _project(chosen: argparse.Namespace) -> None:
    facility = Facility(chosen.node_rest_w, chosen.pue, chosen.cooling)
    if facility.node_rest_w is None and (facility.pue or facility.cooling):
        given = "--pue" if facility.pue else "--cooling"
        raise RecordError(
            f"{given} is about whole nodes, and only the energy of GPUs is projected: give "
            "--node-rest-w, the watts of a node besides its GPUs, as well"
        )
    study = load_study(chosen.config)
    model = lookup("model", chosen.model, study.models).record(chosen.model)
    platform = lookup("platform", chosen.platform, study.platforms)
    machine = hardware_machine(hardware_of(chosen.platform, platform))
    if isinstance(machine, str):
        raise RecordError(f"{chosen.platform} cannot be projected: {machine}")
    shipped = (chosen.runs, chosen.parts) == (SHIPPED, part_times.SHIPPED)
    stack = (
        shipped_stack()
        if shipped
        else own_stack(read_own(chosen.runs), part_times.read_parts(chosen.parts))
    )
    stack.check()
    sequences = batch(model, chosen.gpus, chosen.batch)
    asked = model, machine, chosen.platform
    rows = project(*asked, chosen.gpus, sequences, chosen.tokens, stack)
    first, alike = rows[0], indistinguishable(rows, stack, chosen.platform)
    fabrics = {
        name: replicas(first, chosen.platform, stack, rate) for name, rate in FABRICS.items()
    }
    basis = basis_of(first, stack, levels(stack.runs, machine.gpu), chosen.platform)
    lines = fastest_by_gpus(*asked, chosen.tokens, stack, chosen.batch)
    entries = figures(lines, fabrics, f"{model.name} on {chosen.platform}")
    prices = Prices(chosen.price_per_gpu_hour, chosen.price_per_kwh, chosen.currency)
    said = (meter(first, facility), price(first, facility, prices)) if recommended(rows) else ()
    besides = " ".join(filter(None, said))
    title = f"{model.name} on {counted(chosen.gpus, 'GPU')} of {chosen.platform}"
    page = write_projection(rows, alike, basis, entries, title, besides, chosen.output)
    print(describe(rows, alike, basis, besides))
    print(f"\n{page}")


def _add_collect(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("collect", help="take runs of sweeps to fit a projection to")
    parser.add_argument("sweeps", type=Path, nargs="+", help="directories with runs.parquet")
    parser.add_argument("--output", type=Path, required=True, help="the file to write, CSV")
    parser.set_defaults(run=_collect)


def _collect(chosen: argparse.Namespace) -> None:
    runs = collect(chosen.sweeps)
    write_own(runs, chosen.output)
    print(f"{counted(len(runs), 'cell')} written to {chosen.output}")


def _add_parts(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser(
        "parts", help="lines through times of exchanges and the optimiser that were measured alone"
    )
    parser.add_argument("records", type=Path, help="what research/parts_on_gpus.py wrote")
    parser.set_defaults(run=_parts)


def _parts(chosen: argparse.Namespace) -> None:
    print(part_times.describe(part_times.Rates(part_times.read_parts(chosen.records))))


def add_times(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--parts``, the times of parts that were measured alone."""
    parser.add_argument(
        "--parts",
        type=Path,
        default=part_times.SHIPPED,
        metavar="FILE",
        help="what research/parts_on_gpus.py wrote; else the evidence's",
    )


def _add_twin(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = commands.add_parser("twin", help="the twin of a planned cell on fewer GPUs")
    add_config(parser)
    parser.add_argument("--cell", required=True, help="the id of a planned cell, or a part of it")
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--gpus", type=count, help="of the twin, at most")
    asked.add_argument(
        "--against", help="another planned cell: refuse it, or say by what to multiply its step"
    )
    parser.set_defaults(run=_twin)


def _twin(chosen: argparse.Namespace) -> None:
    sweeps = expand_study(load_study(chosen.config))
    whole = _side(sweeps, chosen.cell)
    if chosen.against is None:
        print(twins.describe(twins.twin_of(whole, chosen.gpus), whole))
    else:
        other = _side(sweeps, chosen.against)
        factor = twins.whole_over_twin(other, whole)
        print(f"a twin: its step time multiplied by {factor:.4f} is that of the whole model")


def _side(sweeps: Views, part: str) -> twins.Side:
    """The one planned cell whose id contains ``part``. Raises ConfigError if there is none or
    several."""
    cells = {
        planned.cell.id: planned.cell
        for sweep in sweeps.values()
        for planned in sweep.cells
        if part in planned.cell.id
    }
    if len(cells) != 1:
        examples = ", ".join(sorted(cells)[:3]) or "none"
        raise ConfigError(
            f"{part!r} is in the ids of {len(cells)} cells, expected 1: {examples}"
            + "".join(f"\nleft out: {mistake}" for mistake in sweeps.mistakes)
        )
    (cell,) = cells.values()
    hardware = cell.hardware
    return twins.Side(cell.model, cell.degrees, cell.training, hardware.gpu or hardware.platform)


if __name__ == "__main__":
    sys.exit(main())
