"""``python -m research.projection``: validate projections, calibrate their intervals, and write
what is shipped with them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from research.projection import calibration, own_validation, validation_text
from research.projection.own_validation import validate_own
from research.projection.ship import ship
from research.projection.validation import validate
from workflow_lib.options import ends_quietly
from workflow_lib.projection import part_times
from workflow_lib.projection.__main__ import add_times, count, run
from workflow_lib.projection.own_runs import SHIPPED, read_own
from workflow_lib.records.whole_files import whole_file
from workflow_lib.words import counted


@ends_quietly
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code, 1 after one message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m research.projection", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    validating = commands.add_parser("validate", help="predict published runs from others")
    add = validating.add_argument
    add("rows", type=Path, help="a CSV file of published runs")
    add("--output", type=Path, required=True, help="directory for what is written")
    more = "more published runs, which are fitted where the splits allow it and not judged"
    add("--also-fit", type=Path, metavar="FILE", help=more)
    validating.set_defaults(run=_validate)

    own = "predict runs of this workflow from those on fewer GPUs"
    judging = commands.add_parser("validate-own", help=own)
    runs = "a file that collect wrote; else the evidence's"
    judging.add_argument("--runs", type=Path, default=SHIPPED, help=runs)
    add_times(judging)
    few = "fit runs on at most N GPUs, and judge those on more; else as the split says: fit those "
    few += "on 1 and 2, judge those on 4"
    judging.add_argument("--fit-gpus", type=count, metavar="N", help=few)
    judging.set_defaults(run=_validate_own)

    held = "what intervals of each kind of question hold of groups that were left out"
    calibrating = commands.add_parser("calibrate", help=held)
    anew = "predict all shipped rows anew, which takes minutes, and write their distances"
    calibrating.add_argument("--measure", type=Path, metavar="FILE", help=anew)
    calibrating.set_defaults(run=_calibrate)

    shipping = commands.add_parser("ship", help="write the fit that the projection reads")
    shipping.set_defaults(run=lambda _: ship())
    return run(parser.parse_args(arguments))


def _validate(chosen: argparse.Namespace) -> None:
    validation = validate(chosen.rows, chosen.also_fit)
    chosen.output.mkdir(parents=True, exist_ok=True)
    path = chosen.output / "validation.json"
    with whole_file(path) as draft:
        draft.write_text(json.dumps(validation, indent=1), encoding="utf-8")
    print(f"{validation_text.describe(validation)}\n\n{path}")


def _validate_own(chosen: argparse.Namespace) -> None:
    times = part_times.read_parts(chosen.parts)
    print(own_validation.describe(validate_own(read_own(chosen.runs), chosen.fit_gpus, times)))


def _calibrate(chosen: argparse.Namespace) -> None:
    if chosen.measure:
        print(f"{counted(calibration.write(chosen.measure), 'group')} in {chosen.measure}")
    else:
        print(calibration.describe())


if __name__ == "__main__":
    sys.exit(main())
