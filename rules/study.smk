# The study, read once: what the rules know of sweeps, cells and paths.
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, workflow.basedir)

from workflow_lib import cells, config as study_config, results

CONFIG = config["config_directory"]
RESULTS = config["results_directory"]
# Commands run in the environment that Snakemake runs in, and find the package next to the Snakefile.
PYTHON = f"PYTHONPATH={shlex.quote(workflow.basedir)} {shlex.quote(sys.executable)}"


def load_study():
    """The study's configuration, its sweeps, and the name of the platform that was chosen."""
    try:
        study = study_config.load_study(Path(CONFIG))
        if "platform" not in config:
            raise study_config.ConfigError(
                "no platform is chosen: use a profile, as in `snakemake --profile local`, or "
                f"`--config platform=NAME` with one of {', '.join(study.platforms)}"
            )
        study_config.lookup("platform", config["platform"], study.platforms)
        for sweep in config["sweeps"]:
            study_config.lookup("sweep", sweep, study.sweeps)
    except study_config.ConfigError as error:
        raise WorkflowError(str(error)) from None
    return study, cells.expand_study(study)


STUDY, SWEEPS = load_study()
CELLS = {cell: planned for cell, (planned, _) in cells.merge(SWEEPS.values()).items()}
CHOSEN_SWEEPS = [
    name
    for name, sweep in SWEEPS.items()
    if sweep.platform == config["platform"] and sweep.spec in config["sweeps"]
]


def runs_of(sweep):
    """Every run that a sweep asks for, as (cell, run)."""
    return [
        (planned.cell.id, run)
        for planned in SWEEPS[sweep].cells
        if planned.feasible
        for run in range(1, planned.repeats + 1)
    ]


def run_file(run, name):
    """A file of one run."""
    return f"{results.run_directory(Path(RESULTS), *run)}/{name}"


def source_files(*packages):
    """The modules and templates of a package: what depends on them is made anew when they change."""
    root = Path(workflow.basedir, "workflow_lib")
    return [
        str(path)
        for package in packages
        for path in sorted((root / package).rglob("*"))
        if path.suffix in (".py", ".j2", ".mplstyle")
    ]


wildcard_constraints:
    sweep=r"[A-Za-z0-9.-]+",
    cell=r"[^/]+/[^/]+/[^/]+",
    run=r"[0-9]+",
