"""Makes a sweep's plan, summaries, tables, figures and page from its configuration and raw files.

It does the work of the rules plan, reduce, traces, collect, figures and page, one after the other
and without Snakemake.
"""

from __future__ import annotations

import os
from pathlib import Path

from workflow_lib import plan, results
from workflow_lib.analysis.batch import reduce_runs
from workflow_lib.analysis.collect import collect
from workflow_lib.analysis.traces.of_run import analyse_run
from workflow_lib.archive.contents import runs_of
from workflow_lib.cells import Sweep
from workflow_lib.records import RecordError
from workflow_lib.report.figures import write_figures_of
from workflow_lib.report.page.page import write_page

#: how many processes reduce runs at most: each takes 0.2 GB of memory
_MOST_PROCESSES = 4


def make_products(sweep: Sweep, results_directory: Path) -> None:
    """Write plan, summaries, tables, figures and page of a sweep.

    Raises RecordError and OSError if raw files are damaged or missing.
    """
    paths = results.sweep_paths(results_directory, sweep.name)
    plan.write(plan.table([sweep]), paths.plan)
    cores = os.cpu_count() or 1
    measured = []
    for _, run, of_run in runs_of(sweep, results_directory):
        if of_run.outcome.is_file() and run == results.PROFILED_RUN:
            analyse_run(of_run.directory)
        elif of_run.outcome.is_file():
            measured.append(of_run.directory)
    if problems := reduce_runs(measured, min(cores, _MOST_PROCESSES)):
        raise RecordError("\n".join(problems))
    collect(paths.plan, results_directory, paths.directory)
    write_figures_of(paths.directory, paths.figures, cores)
    write_page(sweep.name, sweep.description, results_directory, paths.directory)
