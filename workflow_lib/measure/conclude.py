"""``triptych conclude DIR``: what a measured command took, summed up and written.

``measure`` does it when its command ends. Of a job that was killed whole it is done afterwards, to
the last reading.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from workflow_lib.audit import DamagedError
from workflow_lib.measure import record_steps, summary
from workflow_lib.measure.log_steps import PATTERNS
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


def conclude(
    paths: RunPaths, known: Mapping[str, object], records: str | None, problems: Iterable[str] = ()
) -> bool:
    """Write ``measured.json``, and ten lines on stderr. Returns whether it could be written.

    ``known`` is what is known without raw files; ``records`` is the pattern of the program's own;
    ``problems`` are what went wrong with measuring. Raises OSError if files cannot be read.
    """
    if records:
        known = {**known, "records_end": record_steps.write(records, paths.steps, known)}
        if code := known["records_end"]:
            say(record_steps.WHY[str(code)])
    record = summary.summarise(paths.directory, known)
    record["invalid"][:0] = problems
    written = True
    try:
        write_json(paths.measured, record)
    except OSError as error:
        say(f"{paths.directory}: {error.strerror}; free it, and use triptych conclude")
        written = False
    with suppress(OSError):
        for line in summary.lines_of(record, paths.directory):
            print(f"triptych  {line}", file=sys.stderr)
        sys.stderr.flush()
    shutil.rmtree(paths.directory / "hook", ignore_errors=True)
    return written


def add_pattern(parser: argparse.ArgumentParser) -> None:
    """Add the option that says which lines of a log have steps."""
    parser.add_argument(
        "--pattern", metavar="NAME|REGEX", help=f"its lines: {', '.join(PATTERNS)}, or your own"
    )


def add_sampling(parser: argparse.ArgumentParser, rate_hz: float = 10.0) -> None:
    """Add the options of samplers."""
    parser.add_argument(
        "--rate", type=_rate, default=rate_hz, metavar="HZ", help=f"of samples ({rate_hz:g})"
    )
    parser.add_argument(
        "--simulate",
        type=_count_or_none,
        default=0,
        metavar="N",
        help="simulate N GPUs, for trying it",
    )


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what a step has, and which do not count."""
    parser.add_argument("--tokens-per-step", type=count, metavar="N", help="of all ranks together")
    parser.add_argument(
        "--warmup-steps", type=_count_or_none, default=3, metavar="N", help="do not count (3)"
    )


def count(text: str, least: int = 1) -> int:
    """A whole number, as 1048576, 1_048_576 or 1e6. Raises ArgumentTypeError."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not least <= value < 1e18 or value != int(value):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no whole number from {least}, as 1048576 or 1e6"
        )
    return int(value)


def _count_or_none(text: str) -> int:
    return count(text, least=0)


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate above 0 and up to 100 Hz")
    return value


def add_records(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the program's own records."""
    parser.add_argument(
        "--records",
        metavar="GLOB",
        help="the program's own records, with its steps, in place of the log: TensorBoard's "
        "events, or torchtitan's structured log",
    )


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=(__doc__ or "").split("\n")[0])
    parser.add_argument("directory", type=Path, metavar="DIR", help="of a run of measure")
    add_records(parser)
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych conclude") -> int:
    """Sum up a run; returns the exit code."""
    parser = command_line(prog)
    options = parser.parse_args(arguments)
    paths = RunPaths(options.directory.absolute())
    try:
        known = json.loads(paths.measured.read_bytes())
        if known["ended_unix_s"] is None:
            known["ended_unix_s"] = summary.covered_unix_s(paths)[1]
            known["limits"] = [*known.get("limits", ()), "cut_off"]
        elif (
            known["values"]
            and not options.records
            and (damage := summary.damage(paths.directory, known))
        ):
            parser.error(f"{damage}; restore it: {paths.measured} is left as it was")
        return int(not conclude(paths, known, options.records))
    except OSError as error:
        parser.error(f"{paths.directory} is no run of measure: {error.filename}: {error.strerror}")
    except (DamagedError, ValueError, KeyError) as error:
        parser.error(f"{paths.directory} is no run of measure: {error}")


def say(sentence: str) -> None:
    """Print a sentence where the command's output is not."""
    print(f"triptych measure: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
