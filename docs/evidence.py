"""Rebuilds what was measured from its archives: ``make evidence``, or ``python -m docs.evidence``.

Each archive in evidence/ is checked file by file, and its tables, figures and page are made anew
in rebuilt/evidence/. Each column of its tables, key of its summaries and SVG figure has to be that
whose digest evidence/products.csv keeps. docs/results/ and the findings of README.md have to hold
what they say, and the runs and times that projections are fitted to have to be theirs. ``--write``
writes all of them.
PDFs and pages are made too, and not compared: they hold what zlib packed, which is not the same
bytes everywhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path

from docs import digests
from research.pages import (
    engine,
    findings,
    hosts,
    in_step,
    jitter,
    measured,
    operators,
    part_times,
    placing,
    projecting,
    provenance,
    readings,
    sensors,
    sweeps,
    triptych,
    verdicts,
)
from research.projection import ship
from workflow_lib.archive.bag import ArchiveError
from workflow_lib.archive.rebuild import rebuild
from workflow_lib.projection.collecting import collect
from workflow_lib.projection.own_runs import SHIPPED as OWN_RUNS
from workflow_lib.projection.own_runs import own_text
from workflow_lib.projection.own_stack import SHIPPED_FIT as OWN_FIT
from workflow_lib.projection.part_times import SHIPPED as OWN_PARTS
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.safety import printable
from workflow_lib.study import ConfigError, load_ledger, load_study
from workflow_lib.table_files import process_pool

CHECKOUT = Path(__file__).parents[1]
ARCHIVES = CHECKOUT / "evidence"
DIGESTS = ARCHIVES / "products.csv"
REBUILT = CHECKOUT / "rebuilt" / "evidence"
#: the modules of pages of one file
_OF_ONE_PAGE = (
    *(readings, placing, jitter, measured),
    *(hosts, projecting, provenance, operators, in_step),
)
#: more than any archive here has, unpacked
_MAXIMUM_BYTES = 1e9


def rebuild_all(into: Path) -> None:
    """Check every archive, and make what it shows anew in a directory of its name.

    Raises as :func:`workflow_lib.archive.rebuild.rebuild`: where a raw file was changed, too.
    """
    archives = sorted(ARCHIVES.glob("*.zip"))
    places = [into / archive.stem for archive in archives]
    with process_pool(os.cpu_count() or 1) as pool:
        made = pool.map(rebuild, archives, places, repeat(CHECKOUT), repeat(_MAXIMUM_BYTES))
        for name, done in zip((archive.name for archive in archives), made, strict=True):
            print(f"{name}: the checksums of {done.raw_files} raw files are right", flush=True)


#: cells in whose layouts the engine was 3 to 5 % slower before commit e016694b, and that were
#: measured again since
SUPERSEDED = (
    "tp1-pp1-dp2_mb1-gb8-bf16-zero1-overlap-compiled-torch_657776a8",
    "tp1-pp1-dp2_mb1-gb8-bf16-zero3-overlap-compiled-torch_2c62906f",
    "tp1-pp2-dp1_mb1-gb8-bf16-zero1-compiled-torch_d47963b9",
    "tp2-pp1-dp1_mb1-gb8-bf16-zero1-sp-compiled-torch_30369d31",
)


def own_runs(rebuilt: Path) -> str:
    """What ``OWN_RUNS`` has to hold: all archives' cells that a projection can be fitted to."""
    runs = collect(findings.sweeps_of(rebuilt))
    return own_text(run for run in runs if not run.cell.endswith(SUPERSEDED))


def fitted_to(rebuilt: Path) -> dict[Path, str]:
    """The files that projections are fitted to: each path and its text."""
    times = part_times.merged(engine.RECORDS)
    return {OWN_RUNS: own_runs(rebuilt), **({OWN_PARTS: times} if times else {})}


def pages(rebuilt: Path) -> dict[Path, str]:
    """Every file of docs/results, and README.md with its picture and findings: each path and its
    text."""
    judged = verdicts.rows_of(rebuilt)
    return {
        **findings.files(rebuilt),
        **sweeps.files(rebuilt),
        **engine.files(),
        **sensors.files(),
        **triptych.files(rebuilt),
        **{findings.DIRECTORY / each.NAME: each.page(rebuilt) for each in _OF_ONE_PAGE},
        findings.DIRECTORY / verdicts.NAME: verdicts.claims_page(judged),
        verdicts.README: verdicts.readme(rebuilt, judged),
    }


def stale(rebuilt: Path) -> list[str]:
    """Files of docs/results, README.md and the files of runs and times to fit to, if they are not
    what the rebuilt tables and records say.
    """
    return _stale({**pages(rebuilt), **fitted_to(rebuilt)})


def _stale(made: Mapping[Path, str]) -> list[str]:
    here = {path for path in findings.DIRECTORY.rglob("*") if path.is_file()}
    here |= {verdicts.README, *(path for path in (OWN_RUNS, OWN_PARTS) if path.is_file())}
    # Pages that somebody wrote of measurements without an archive are left alone.
    others = {
        path
        for path in here - made.keys()
        if path.suffix != ".md" or path.read_text("utf-8").startswith("<!-- Made by")
    }
    changed = [p for p, text in made.items() if p not in here or p.read_text("utf-8") != text]
    return sorted(path.relative_to(CHECKOUT).as_posix() for path in [*others, *changed])


def _write_fit(rebuilt: Path) -> bool:
    """Write what projections are fitted to, and the fit. Returns whether the fit changed."""
    before = OWN_FIT.read_text(encoding="utf-8") if OWN_FIT.is_file() else ""
    for path, text in fitted_to(rebuilt).items():
        path.write_text(text, encoding="utf-8", newline="")
    ship.ship()
    return OWN_FIT.read_text(encoding="utf-8") != before


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if anything is not what it was, or after one message on stderr."""
    parser = argparse.ArgumentParser(prog="python -m docs.evidence", description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep what is made as what has to be")
    chosen = parser.parse_args(arguments)
    try:
        return _make(write=chosen.write)
    except (ArchiveError, ConfigError, RecordError, OSError) as error:
        print(printable(f"evidence: {error}", bounds.MESSAGE_LETTERS.most), file=sys.stderr)
        if isinstance(error, ArchiveError):
            print(
                "Nothing was made. `git status evidence` names archives that differ.",
                file=sys.stderr,
            )
        return 1


def as_recorded() -> Path:
    """The file beside what was made that is there if all of it was as recorded."""
    return REBUILT.with_name("evidence.as-recorded")


def _make(write: bool) -> int:
    """Rebuild, compare and say. Raises as :func:`rebuild_all` and :func:`pages`."""
    # First, as it takes no time: pages need the claims, and no sweep that is not of the evidence.
    load_ledger(verdicts.LEDGER)
    for mistake in load_study(verdicts.LEDGER.parent).mistakes:
        print(printable(f"evidence: left out: {mistake}"), file=sys.stderr)
    as_recorded().unlink(missing_ok=True)
    # Whole or not at all: other commands take what lies there for all of the evidence.
    draft = REBUILT.with_name("evidence.draft")
    for each in (REBUILT, draft):
        shutil.rmtree(each, ignore_errors=True)
    try:
        rebuild_all(draft)
        draft.rename(REBUILT)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    made = digests.digests(REBUILT)
    if write:
        # Plans and pages have projections, which are fitted to these runs.
        if _write_fit(REBUILT):
            # A process keeps the fit that it read, so another one makes plans and pages by this.
            return subprocess.run([sys.executable, "-m", "docs.evidence", "--write"]).returncode
        digests.write(DIGESTS, made)
    written = {**pages(REBUILT), **fitted_to(REBUILT)}
    if write:
        for path, text in written.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
    kept = digests.read(DIGESTS)
    changed, old = digests.differences(kept, made), _stale(written)
    print(f"Rebuilt in {REBUILT.relative_to(CHECKOUT)}, with a report.html of each sweep.")
    compared = sum(map(len, kept.values()))
    print(
        f"{compared} columns of tables and summaries, and figures, compared: {len(changed)} differ"
    )
    for line in [*changed, *(f"not as it was: {name}" for name in old)]:
        print(f"  {line}", file=sys.stderr)
    if changed:
        print(
            "If you changed nothing, `make rebuild ARCHIVE=<one of evidence/>` says which packages "
            "are others than when it was packed.",
            file=sys.stderr,
        )
    if changed or old:
        print(
            "If you meant the change, keep it: .venv/bin/python -m docs.evidence --write",
            file=sys.stderr,
        )
        return 1
    as_recorded().touch()
    return 0


if __name__ == "__main__":
    sys.exit(main())
