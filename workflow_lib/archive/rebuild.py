"""Rebuilds a sweep from its archive, and says which files are the same, byte for byte."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow_lib.archive import versions
from workflow_lib.archive.bag import ArchiveError
from workflow_lib.archive.contents import CONFIGURATION, RESULTS, is_product, make_products, runs_of
from workflow_lib.archive.unpacking import unpack
from workflow_lib.cells import expand_study
from workflow_lib.records.checksums import sha256_of
from workflow_lib.safety import printable
from workflow_lib.study import load_study, lookup, remedy
from workflow_lib.words import counted

#: how many files that an archive does not hold are named; one that was packed without tables holds
#: none of them
_NAMED = 10
#: names that every rebuild leaves; a directory without them is not removed
_OF_A_REBUILD = (CONFIGURATION, RESULTS, versions.NAME)
_PLAN = re.compile(rf"{RESULTS}/sweeps/([^/]+)/plan\.parquet")


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild: which of the files that are made from others are the same. Files are
    given by their names in the payload.
    """

    sweep: str
    runs: int
    #: as Packed.raw_files
    raw_files: int
    same: tuple[str, ...]
    different: tuple[str, ...]
    #: files in the archive that were not made again
    missing: tuple[str, ...]
    #: files that were made and that the archive does not hold
    new: tuple[str, ...]
    #: packages whose version differs from that at packing, a line each
    versions: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether all files are the same."""
        return not (self.different or self.missing or self.new)


def find_archive(named: str, directories: Sequence[Path]) -> Path:
    """The archive of this path, or of this name in one of ``directories``. Raises ArchiveError if
    there is none.
    """
    plain = named.strip().removesuffix(":")
    names = dict.fromkeys([plain, f"{plain.removesuffix('.zip')}.zip"])
    places = [Path(), *([] if "/" in plain else directories)]
    for path in (place / name for place in places for name in names):
        if path.is_file():
            return path
    there = {path.stem for directory in directories for path in directory.glob("*.zip")}
    looked = " or ".join(str(directory) for directory in directories)
    raise ArchiveError(
        f"no archive is called {plain!r} in {looked}; {remedy('archive', plain, there)}"
    )


def rebuild(
    archive: Path, into: Path, checkout: Path | None, maximum_bytes: float, again: bool = False
) -> Rebuilt:
    """Check an archive, unpack its raw files, and make all other files again.

    ``into`` holds config/ and results/ afterwards. It must not exist; with ``again`` it may be an
    earlier rebuild, which is removed once the archive has been checked.

    Raises ArchiveError if the archive is damaged, changed or hostile; ConfigError or RecordError if
    this version of the code cannot read its files; and OSError.
    """
    earlier = _earlier(into, again)
    bag = unpack(archive, into, lambda name: not is_product(name), maximum_bytes, earlier)
    sweeps = [match[1] for name in bag.checksums if (match := _PLAN.fullmatch(name))]
    if len(sweeps) != 1 or versions.NAME not in bag.checksums:
        raise ArchiveError(
            f"{archive}: it holds {len(sweeps)} plans, expected one, and {versions.NAME}; unpacked "
            f"to {into}"
        )
    then_with = versions.read_versions(into / versions.NAME)
    study = load_study(into / CONFIGURATION)
    sweep = lookup("sweep", sweeps[0], expand_study(study))
    make_products(sweep, into / RESULTS)
    made = {
        name: sha256_of(path)
        for path in (into / RESULTS).rglob("*")
        if path.is_file() and is_product(name := path.relative_to(into).as_posix())
    }
    then = {name: bag.checksums[name] for name in bag.checksums if is_product(name)}
    both = sorted(then.keys() & made.keys())
    return Rebuilt(
        sweep.name,
        len(runs_of(sweep, into / RESULTS)),
        len(bag.checksums) - len(then),
        same=tuple(name for name in both if then[name] == made[name]),
        different=tuple(name for name in both if then[name] != made[name]),
        missing=tuple(sorted(then.keys() - made.keys())),
        new=tuple(sorted(made.keys() - then.keys())),
        versions=tuple(versions.differences(then_with, versions.versions(checkout))),
    )


def _earlier(into: Path, again: bool) -> bool:
    """Whether ``into`` is an earlier rebuild that is to be replaced; False if it does not exist.

    Raises ArchiveError if it is something else, or an earlier rebuild without ``again``.
    """
    if not os.path.lexists(into):
        return False
    if into.is_symlink() or not all((into / name).exists() for name in _OF_A_REBUILD):
        raise ArchiveError(
            f"{into} exists, and is nothing that rebuild made; choose another place with --into "
            "(make rebuild … INTO=PLACE)"
        )
    if not again:
        raise ArchiveError(
            f"{into} exists, from an earlier rebuild; say --again to replace it (make rebuild … "
            "AGAIN=1), or choose another place with --into (INTO=PLACE)"
        )
    return True


def described(rebuilt: Rebuilt, into: Path) -> str:
    """The result as text: whether all files are the same, which differ, and what may be why."""
    packed = len(rebuilt.same) + len(rebuilt.different) + len(rebuilt.missing)
    lines = [
        f"Sweep {rebuilt.sweep}: {counted(rebuilt.runs, 'run')}; the checksums of "
        f"{rebuilt.raw_files} raw files are right.",
        f"Rebuilt in {into}: {len(rebuilt.same)} of {packed} plans, summaries, tables, figures and "
        "pages are the same as before, byte for byte.",
    ]
    new = rebuilt.new if len(rebuilt.new) <= _NAMED else (counted(len(rebuilt.new), "file"),)
    for what, names in (
        ("differs", rebuilt.different),
        ("was not made", rebuilt.missing),
        ("was not in the archive", new),
    ):
        lines += [f"  {what}: {name}" for name in names]
    if not rebuilt.whole:
        because = rebuilt.versions or ("nothing: code, packages and machine are as they were",)
        lines += ["What may be why:", *(f"  {line}" for line in because)]
    # Names and versions come from the archive, so they may hold control characters.
    return printable("\n".join(lines))
