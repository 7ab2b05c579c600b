"""The commands that make a sweep's page again, from its raw files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from workflow_lib.records import Outcome
from workflow_lib.report.cells import Row
from workflow_lib.results import run_directory


def rebuilding_commands(
    sweep: str, description: str, runs: Iterable[Row], results: Path, directory: Path
) -> str:
    """Lines for a shell, which reduce the sweep's own runs and write tables, figures and page.

    Those runs are reduced that the workflow reduces: the others have no summary.
    """
    reduced = [
        shlex.quote(str(run_directory(results, run["cell"], run["run"])))
        for run in runs
        if run["outcome"] in _RESULTS
    ]
    tables, figures, plan = (
        shlex.quote(str(path))
        for path in (directory, directory / "figures", directory / "plan.parquet")
    )
    all_results = shlex.quote(str(results))
    lines = []
    if reduced:
        listed = " \\\n    ".join(reduced)
        reduce = 'python -m workflow_lib.analysis reduce "$run"'
        lines.append(f"for run in \\\n    {listed}; do\n  {reduce}\ndone")
    lines.append(
        f"python -m workflow_lib.analysis collect --plan {plan} --results {all_results}"
        f" --output {tables}"
    )
    lines.append(f"python -m workflow_lib.report figures --tables {tables} --output {figures}")
    # With an equals sign, since a description may begin with a dash.
    told = f" --description={shlex.quote(description)}" if description else ""
    lines.append(
        f"python -m workflow_lib.report page --sweep {shlex.quote(sweep)}{told}"
        f" --results {all_results} --directory {tables}"
    )
    return "\n".join(lines)


_RESULTS = frozenset(outcome.value for outcome in Outcome if outcome.is_result)
