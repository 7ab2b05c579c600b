"""``python -m workflow_lib.claims SWEEP … --output DIR``: judge claims by what sweeps measured.

Writes ``claims.parquet``, ``claims.md`` and ``claims.html``.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from workflow_lib.cells import expand_study
from workflow_lib.claims import measured, page
from workflow_lib.claims.ledger import judge, project
from workflow_lib.claims.projected import cells_of
from workflow_lib.claims.verdicts import IN_WORDS
from workflow_lib.options import add_meters, ends_quietly
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.verdict_tables import CLAIMS
from workflow_lib.records.whole_files import report_error, whole_file
from workflow_lib.report.figures.html import address
from workflow_lib.safety import printable
from workflow_lib.study import ConfigError, load_ledger, load_meters, load_study, remedy
from workflow_lib.table_files import table, write_table


def write(
    claims: Path,
    sweeps: Sequence[Path],
    output: Path,
    config: Path | None = None,
    meters: Path | None = None,
) -> str:
    """Judge the claims of a file by sweeps, and write the three files; returns a line of counts.
    With a configuration, its planned cells are projected for the study's claims. ``meters`` is the
    file of what meters showed of sensors of power.

    Raises ConfigError, RecordError and OSError.
    """
    ledger = load_ledger(claims)
    for sweep in sweeps:
        if not SweepPaths(sweep).table("cells").is_file():
            raise FileNotFoundError(
                f"{sweep} has no cells.parquet: expected the directory of a sweep that was run, as "
                f"results/sweeps/<sweep>; {remedy('sweep', sweep.name, _run_beside(sweep))}"
            )
    groups = measured.read(sweeps, load_meters(meters))
    rows = judge(ledger, groups)
    projected = []
    if config is not None:
        study = expand_study(load_study(config))
        for mistake in study.mistakes:
            print(printable(f"claims: left out: {mistake}"), file=sys.stderr)
        projected = project(ledger, cells_of(study.values()))
    write_table(table([*rows, *projected], CLAIMS), output / "claims.parquet")

    directories = {name: path for group in groups for name, path in group.directories.items()}

    def link(sweep: str, cell: str) -> str:
        report = SweepPaths(directories[sweep]).report
        return Path(os.path.relpath(report, output)).as_posix() + address(cell)

    texts = {
        "claims.md": page.markdown(ledger, rows, link, projected=projected),
        "claims.html": page.html(ledger, rows, link, projected),
    }
    for name, text in texts.items():
        with whole_file(output / name) as draft:
            draft.write_text(text, encoding="utf-8")
    verdicts = Counter({row["claim"]: row["claim_verdict"] for row in rows}.values())
    counts = ", ".join(f"{verdicts[verdict]} {words}" for verdict, words in IN_WORDS.items())
    return f"{len(ledger.claims)} claims: {counts}"


def _run_beside(sweep: Path) -> list[str]:
    """The names of the sweeps with tables in the directory where ``sweep`` was looked for."""
    return [path.parent.name for path in sweep.parent.glob("*/cells.parquet")]


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument(
        "sweeps", type=Path, nargs="+", help="directories of sweeps, as results/sweeps/<sweep>"
    )
    parser.add_argument(
        "--claims",
        type=Path,
        default=Path("config/claims.yaml"),
        help="the claims and their rules (default: config/claims.yaml)",
    )
    parser.add_argument(
        "--project",
        type=Path,
        metavar="CONFIG",
        help="also project the cells of this configuration, such as config, for the study's claims",
    )
    parser.add_argument("--output", type=Path, required=True, help="directory for what is written")
    add_meters(parser)
    return parser


@ends_quietly
def main(
    arguments: Sequence[str] | None = None, prog: str = "python -m workflow_lib.claims"
) -> int:
    """Run the command; returns the exit code, 1 after one message on stderr."""
    chosen = command_line(prog).parse_args(arguments)
    try:
        counts = write(chosen.claims, chosen.sweeps, chosen.output, chosen.project, chosen.meters)
    except (ConfigError, RecordError, OSError) as error:
        return report_error("claims", error)
    print(counts)
    print(chosen.output / "claims.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
