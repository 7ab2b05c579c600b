"""Rebuilds a sweep from its archive, and says which files are the same bytes as before."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from workflow_lib.archive import versions
from workflow_lib.archive.bag import ArchiveError
from workflow_lib.archive.contents import CONFIGURATION, RESULTS, is_product
from workflow_lib.archive.products import make_products
from workflow_lib.archive.unpacking import unpack
from workflow_lib.cells import expand_study
from workflow_lib.safety import printable
from workflow_lib.study import load_study, lookup, of_view

_PLAN = re.compile(rf"{RESULTS}/sweeps/([^/]+)/plan\.parquet")


@dataclass(frozen=True)
class Rebuilt:
    """What became of each file that is made from others, by its name in the payload."""

    sweep: str
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


def rebuild(archive: Path, into: Path, checkout: Path, maximum_bytes: float) -> Rebuilt:
    """Check an archive, unpack what was not made from other files, and make the rest anew.

    ``into`` must not exist; it holds config/ and results/ afterwards. Raises ArchiveError where the
    archive is damaged, was changed or is hostile, ConfigError or RecordError where this version of
    the code cannot read what it holds, and OSError.
    """
    bag = unpack(archive, into, lambda name: not is_product(name), maximum_bytes)
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
        len(bag.checksums) - len(then),
        same=tuple(name for name in both if then[name] == made[name]),
        different=tuple(name for name in both if then[name] != made[name]),
        missing=tuple(sorted(then.keys() - made.keys())),
        new=tuple(sorted(made.keys() - then.keys())),
        versions=tuple(versions.differences(then_with, versions.versions(checkout))),
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def described(rebuilt: Rebuilt, into: Path) -> str:
    """What a person asks: is it the same, and if not, what differs and why that may be."""
    made = len(rebuilt.same) + len(rebuilt.different)
    lines = [
        f"Sweep {rebuilt.sweep}: the checksums of {rebuilt.raw_files} raw files are right.",
        f"Rebuilt in {into}: {len(rebuilt.same)} of {made} plans, summaries, tables, figures and "
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
