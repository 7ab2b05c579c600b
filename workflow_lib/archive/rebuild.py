"""Rebuilds a sweep from its archive, and says which files are the same bytes as before."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from workflow_lib.archive import versions
from workflow_lib.archive.bag import ArchiveError
from workflow_lib.archive.contents import CONFIGURATION, RESULTS, is_product, runs_of
from workflow_lib.archive.products import make_products
from workflow_lib.archive.unpacking import unpack
from workflow_lib.cells import expand_study
from workflow_lib.safety import printable
from workflow_lib.study import load_study, lookup, of_view
from workflow_lib.words import counted

#: archives that a message lists
_LISTED = 20
#: what every rebuild leaves, so that nothing else is removed
_OF_A_REBUILD = (CONFIGURATION, RESULTS, versions.NAME)
_PLAN = re.compile(rf"{RESULTS}/sweeps/([^/]+)/plan\.parquet")


@dataclass(frozen=True)
class Rebuilt:
    """What became of each file that is made from others, by its name in the payload."""

    sweep: str
    runs: int
    #: as pack counts them
    raw_files: int
    same: tuple[str, ...]
    different: tuple[str, ...]
    #: that the archive holds, and that were not made
    missing: tuple[str, ...]
    #: that were made, and that the archive does not hold
    new: tuple[str, ...]
    #: what is another version than when the archive was packed
    versions: tuple[str, ...]

    @property
    def whole(self) -> bool:
        """Whether everything is as it was."""
        return not (self.different or self.missing or self.new)


def found(named: str, directories: Sequence[Path]) -> Path:
    """The archive that somebody names: by its path, as pack prints it, or by its name alone where
    it lies in one of some directories. Raises ArchiveError.
    """
    plain = named.strip().removesuffix(":")
    names = dict.fromkeys([plain, f"{plain.removesuffix('.zip')}.zip"])
    places = [Path(), *([] if "/" in plain else directories)]
    for path in (place / name for place in places for name in names):
        if path.is_file():
            return path
    there = sorted(path for each in directories for path in each.glob("*.zip"))
    listed = ", ".join(f"{path.stem} ({path})" for path in there[:_LISTED]) or "none"
    looked = ", ".join(str(each) for each in directories)
    raise ArchiveError(f"no archive is called {plain!r}; in {looked} there are: {listed}")


def rebuild(
    archive: Path, into: Path, checkout: Path | None, maximum_bytes: float, again: bool = False
) -> Rebuilt:
    """Check an archive, unpack what was not made from other files, and make the rest anew.

    ``into`` holds config/ and results/ afterwards. It must not exist, or with ``again`` be what an
    earlier rebuild left, which is removed once the archive has been checked. Raises ArchiveError
    where the archive is damaged, was changed or is hostile, ConfigError or RecordError where this
    version of the code cannot read what it holds, and OSError.
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
    study = load_study(into / CONFIGURATION, of_view(sweeps[0]))
    sweep = lookup("sweep", sweeps[0], expand_study(study))
    make_products(sweep, into / RESULTS)
    made = {
        name: _sha256(path)
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
    """Whether there is an earlier rebuild that is to be replaced. Raises ArchiveError where there
    is one that is not, or something else.
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


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def described(rebuilt: Rebuilt, into: Path) -> str:
    """What a person asks: is it the same, and if not, what differs and why that may be."""
    packed = len(rebuilt.same) + len(rebuilt.different) + len(rebuilt.missing)
    lines = [
        f"Sweep {rebuilt.sweep}: {counted(rebuilt.runs, 'run')}; the checksums of "
        f"{rebuilt.raw_files} raw files are right.",
        f"Rebuilt in {into}: {len(rebuilt.same)} of {packed} plans, summaries, tables, figures and "
        "pages are the same as before, byte for byte.",
    ]
    for what, names in (
        ("differs", rebuilt.different),
        ("was not made", rebuilt.missing),
        ("was not in the archive", rebuilt.new),
    ):
        lines += [f"  {what}: {name}" for name in names]
    if not rebuilt.whole:
        because = rebuilt.versions or ("nothing: code, packages and machine are as they were",)
        lines += ["What may be why:", *(f"  {line}" for line in because)]
    # An archive tells names and versions, which can hold anything.
    return printable("\n".join(lines))
