# What was made from other files and is damaged goes before Snakemake looks what there is, so that the
# same command makes it again. Snakemake itself sees modification times alone.
from workflow_lib import damage
from workflow_lib.launch.job_script import write_cell
from workflow_lib.records.whole_files import error_text


def mend_damage():
    """Remove damaged tables, figures and pages, and write damaged cells again; says which.

    Not where another Snakemake works in this directory, which may be writing them just now.
    """
    if not workflow.is_main_process or any(Path(".snakemake/locks").glob("*")):
        return
    runs = {run for name in OF_PLATFORM for run in runs_of(name)}
    directories = {run: results.run_directory(Path(RESULTS), *run) for run in sorted(runs)}
    found = damage.damaged_in_runs(directories.values())
    found += damage.damaged_in_sweeps(Path(RESULTS), SWEEPS)
    planned = ((directory, CELLS[cell].cell) for (cell, _), directory in directories.items())
    rendered = damage.damaged_cells(planned)
    if workflow.output_settings.dryrun:
        done = "is damaged, or shows what is; without --dry-run it is removed, to be made again"
    else:
        damage.remove(found)
        for directory, cell in rendered:
            write_cell(cell, directory)
        done = "was damaged, or showed what is; it was removed, to be made again"
    for path in found:
        logger.warning(f"{path} {done}")
    for directory, _ in rendered:
        logger.warning(
            f"{RunPaths(directory).cell} is damaged, and is written again from the configuration"
        )


try:
    mend_damage()
except OSError as error:
    raise WorkflowError(
        f"{error_text(error)}: a damaged file can be neither read nor mended"
    ) from None
