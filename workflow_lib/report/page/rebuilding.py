"""The commands that make a sweep's page again, from its raw files."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from workflow_lib import results
from workflow_lib.records import Outcome
from workflow_lib.report.cells import Row

#: the shell's variable for the directory of results; a path would make the page depend on where it
#: is made
_RESULTS = '"$results"'


def rebuilding_commands(sweep: str, description: str, runs: Iterable[Row]) -> str:
    """Lines for a shell, which reduce the sweep's own runs and write tables, figures and page.

    Only runs that the workflow reduces are named; the others have no summary.
    """
    reduced = [
        _below_results(results.run_directory(Path(), run["cell"], run["run"]))
        for run in runs
        if run["outcome"] in _ENDINGS
    ]
    paths = results.sweep_paths(Path(), sweep)
    tables, figures, plan = map(_below_results, (paths.directory, paths.figures, paths.plan))
    lines = ["results=results  # or their directory"]
    if reduced:
        listed = " \\\n    ".join(reduced)
        reduce = 'python -m workflow_lib.analysis reduce "$run"'
        lines.append(f"for run in \\\n    {listed}; do\n  {reduce}\ndone")
    lines.append(
        f"python -m workflow_lib.analysis collect --plan {plan} --results {_RESULTS}"
        f" --output {tables}"
    )
    lines.append(f"python -m workflow_lib.report figures --tables {tables} --output {figures}")
    # With an equals sign, because a description may begin with a dash.
    told = f" --description={shlex.quote(description)}" if description else ""
    lines.append(
        f"python -m workflow_lib.report page --sweep {shlex.quote(sweep)}{told}"
        f" --results {_RESULTS} --directory {tables}"
    )
    return "\n".join(lines)


def _below_results(path: Path) -> str:
    return f"{_RESULTS}/{shlex.quote(str(path))}"


_ENDINGS = frozenset(outcome.value for outcome in Outcome if outcome.is_result)
