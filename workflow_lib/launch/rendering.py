"""Renders the script of one run of a planned cell."""

from __future__ import annotations

import sys
from pathlib import Path

from workflow_lib import results
from workflow_lib.cells import PlannedCell
from workflow_lib.config import Platform
from workflow_lib.launch import job_script, snapshot
from workflow_lib.study import ConfigError, Study

#: the interpreter of the environment that `make` makes; where VENV names another place for it, jobs
#: have the interpreter of the environment that renders their script
_OF_MAKE = ".venv/bin/python"


def with_own_python(platform: Platform) -> Platform:
    """The platform, with this interpreter where its file has that of ``make`` and VENV names
    another place.
    """
    if platform.python == _OF_MAKE and Path(sys.prefix, ".installed").is_file():
        return platform.model_copy(update={"python": f"{sys.prefix}/bin/python"})
    return platform


def render_run(
    study: Study, planned: PlannedCell, run: int, results_directory: Path, root: Path
) -> None:
    """Write ``cell.json`` and ``job.sh`` of a run below ``results_directory``, and the code that it
    runs. ``root`` is the repository's directory.

    Raises ConfigError if the cell cannot run or no sweep asks for the run, RenderError, OSError.
    """
    cell = planned.cell
    if planned.estimate is None or not planned.feasible:
        raise ConfigError(f"{cell.id} cannot run: {planned.reason}")
    profiled_steps = planned.profiled_steps if run == results.PROFILED_RUN else 0
    if run not in planned.runs:
        raise ConfigError(
            f"no sweep asks for run {run} of {cell.id}: its runs are "
            f"{', '.join(map(str, planned.runs))}, where 0 is profiled and needs the sweep's "
            "protocol to give profiled_steps"
        )
    directory = results.run_directory(results_directory.absolute(), cell.id, run)
    # Before the code: of a run that is another user's, it is the run whose owner is named.
    job_script.write_cell(cell, directory)
    places = job_script.Places(
        root=root.absolute(),
        run_directory=directory,
        tokens=results.tokens(results_directory.absolute(), cell.data),
        code=snapshot.write(results.code_directory(results_directory.absolute())),
    )
    platform = with_own_python(study.platforms[cell.hardware.platform])
    limit_min = planned.estimate.time_limit_min
    script = job_script.job_script(cell, platform, places, limit_min, profiled_steps)
    job_script.write_script(script, directory)
