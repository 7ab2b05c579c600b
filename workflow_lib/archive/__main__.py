"""``python -m workflow_lib.archive``: pack a sweep, or rebuild it from its archive."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from workflow_lib import checkout
from workflow_lib.archive.bag import ArchiveError
from workflow_lib.archive.pack import pack
from workflow_lib.archive.rebuild import described, find_archive, rebuild
from workflow_lib.checkout import CheckoutError
from workflow_lib.options import add_config, add_results, ends_quietly
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import report_error
from workflow_lib.study import ConfigError
from workflow_lib.words import counted

_MAXIMUM_GB = 100.0
_EVIDENCE = Path("evidence")
#: directories in which an archive is looked for by its name
_ARCHIVES = (Path("results/archives"), _EVIDENCE)


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write a sweep's archive")
    packing.add_argument("--sweep", required=True, help="its name, as in results/sweeps/")
    packing.add_argument("--output", type=Path, help="results/archives/<sweep>.zip unless given")
    add_config(packing)
    add_results(packing)
    packing.add_argument(
        "--licence", type=_licence, help="of the data: an SPDX identifier, or an address"
    )
    packing.add_argument(
        "--published", type=_day, help="YYYY-MM-DD; the last run's day unless given"
    )
    packing.add_argument(
        "--cut-off",
        action="store_true",
        help="pack runs as they lie that nothing says the end of, as of a machine that is gone",
    )
    packing.add_argument(
        "--short-traces",
        action="store_true",
        help="leave the events out of traces that no table is made of, most of their bytes",
    )
    rebuilding = commands.add_parser("rebuild", help="check an archive, and make all of it again")
    rebuilding.add_argument(
        "archive", help="what pack wrote: its path, or its name in results/archives or evidence"
    )
    rebuilding.add_argument("--into", type=Path, help="rebuilt/<archive's name> unless given")
    rebuilding.add_argument(
        "--again", action="store_true", help="replace what an earlier rebuild left there"
    )
    rebuilding.add_argument(
        "--maximum-gb", type=float, default=_MAXIMUM_GB, help=f"unpacked; {_MAXIMUM_GB:g} if not"
    )
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.archive"
) -> int:
    """Run a command. Returns the exit code: 1 after an error, which is one message on stderr, and 1
    if a rebuilt file differs.
    """
    chosen = command_line(prog).parse_args(arguments)
    try:
        return _pack(chosen) if chosen.command == "pack" else _rebuild(chosen)
    except (ArchiveError, CheckoutError, ConfigError, RecordError, OSError) as error:
        return report_error(chosen.command, error)


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is not a day, as in 2026-01-31") from None


def _licence(text: str) -> str:
    """An SPDX identifier as SPDX writes it, or an address as it is."""
    if "://" in text:
        return text
    try:
        return str(canonicalize_license_expression(text))
    except InvalidLicenseExpression:
        raise argparse.ArgumentTypeError(
            f"{text} is no licence that SPDX knows: give an identifier, as in CC-BY-4.0, or the "
            "licence's address"
        ) from None


def _pack(chosen: argparse.Namespace) -> int:
    archive = chosen.output or chosen.results / "archives" / f"{chosen.sweep}.zip"
    if archive.is_dir():
        raise ArchiveError(
            f"--output {archive} is a directory; name a file, as in {archive / chosen.sweep}.zip"
        )
    packed = pack(
        chosen.sweep,
        archive,
        chosen.config,
        chosen.results,
        checkout.of_package_or_here(),
        chosen.licence,
        chosen.published,
        chosen.cut_off,
        chosen.short_traces,
    )
    size_mb, before_mb = archive.stat().st_size / 1e6, packed.bytes_before / 1e6
    print(
        f"{archive}: {counted(packed.runs, 'run')}, {packed.raw_files} raw files, and "
        f"{packed.products} made from them; {size_mb:.1f} MB of {before_mb:.1f} MB"
    )
    if packed.missing:
        lacks = ", ".join(packed.missing)
        print(f"It lacks {lacks}: for these, run the workflow to its end and pack again")
    if packed.texts:
        print(
            f"It holds no tokens of {', '.join(packed.texts)}, only their checksums: who trains "
            "again needs the text"
        )
    if chosen.licence is None:
        print(
            "It names no licence; choose one before others get it, with --licence CC-BY-4.0 (make "
            "archive … LICENCE=CC-BY-4.0)"
        )
    return 0


def _rebuild(chosen: argparse.Namespace) -> int:
    archive = find_archive(chosen.archive, _ARCHIVES)
    into = chosen.into or Path("rebuilt") / archive.stem
    rebuilt = rebuild(archive, into, checkout.of_package(), chosen.maximum_gb * 1e9, chosen.again)
    print(described(rebuilt, into))
    if not rebuilt.whole and archive.parent == _EVIDENCE:
        print(
            f"{_EVIDENCE}/ holds archives of earlier versions, some without tables. `make "
            "evidence` compares what this version makes of them with the checksums of this "
            "checkout."
        )
    return 0 if rebuilt.whole else 1


if __name__ == "__main__":
    sys.exit(main())
