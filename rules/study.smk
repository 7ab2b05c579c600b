# The study, read once: what the rules know of sweeps, cells, runs and paths.
import functools
import json
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.io import IOFile
from snakemake.settings.types import DeploymentMethod

# Of the clone, whichever file Snakemake read first. Where the rules came without their clone, as
# snakedeploy's do from another host, it is the installed package.
CLONE = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parent
if (CLONE / "workflow_lib").is_dir():
    sys.path.insert(0, str(CLONE))

try:
    import workflow_lib
except ImportError:
    raise WorkflowError(
        "the package is not here: `pip install` the version of these rules, or run in a clone"
    ) from None

from workflow_lib import cells, check, import_graph, order, results
from workflow_lib.config import Invocation
from workflow_lib.feasibility import PROJECTION
from workflow_lib.launch.run_lock import why_only_read
from workflow_lib.records.tables import TABLES
from workflow_lib.records.whole_files import owner_in_the_way
from workflow_lib.study import ConfigError, checked, load_study, lookup, plain_of

#: where the package lies, for jobs to import it from
ROOT = str(Path(workflow_lib.__file__).parents[1])

try:
    # Snakemake itself keeps the last of a key that is given twice.
    for file in workflow.configfiles:
        if Path(file).suffix in (".yaml", ".yml"):
            plain_of(Path(file))
    INVOCATION = checked("config/config.yaml or --config", Invocation, config)
except ConfigError as error:
    said = str(error)
    if not Path("config/config.yaml").is_file():
        said += f"\n{Path.cwd()} has no config/config.yaml: change to the clone, by cd {CLONE}"
    raise WorkflowError(said) from None
if "{" in ROOT or "}" in ROOT:
    raise WorkflowError(f"{ROOT}: Snakemake reads braces; move the repository")
CONFIG = str(Path(INVOCATION.config_directory))
RESULTS = str(Path(INVOCATION.results_directory))


def refuse_unwritable(directory, what):
    """Refuse, in a sentence, a directory that this user cannot write to, be it read-only."""
    if broken := results.broken_link(directory):
        raise WorkflowError(broken)
    there = results.nearest_existing(directory)
    if not os.access(there, os.W_OK | os.X_OK):
        whose = owner_in_the_way(there) or ""
        raise WorkflowError(
            f"{there} cannot be written to, and {what}{whose and f'; {whose}'}. Work in a checkout "
            "of your own, with `--config results_directory=DIRECTORY` if need be; to look at what "
            f"is there, `python -m workflow_lib.status --results {shlex.quote(RESULTS)}` only reads"
        )


refuse_unwritable(Path(".snakemake").absolute(), "Snakemake keeps its records there")
for below in ("", "cells", "logs", "sweeps"):
    refuse_unwritable(Path(RESULTS, below).absolute(), "results go there")

# Commands say `python` and find the package beside the rules. Unless Snakemake makes the
# environment, it is the one that Snakemake itself runs in.
search = f"export PYTHONPATH={shlex.quote(ROOT)}${{PYTHONPATH:+:$PYTHONPATH}}"
if DeploymentMethod.CONDA not in workflow.deployment_settings.deployment_method:
    search += f" PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
# A prefix replaces Snakemake's own strict mode, without which `tee` would hide every failure. And
# Snakemake formats the prefix, as it does every command.
shell.prefix(f"set -euo pipefail; {search}; ".replace("{", "{{").replace("}", "}}"))


#: what is made of a measured run, and of a profiled one
REDUCED = ("summary.json", "steps.parquet", "series.parquet")
TRACE_TABLES = ("traces/kernels.parquet", "traces/traces.parquet")


def study_of_platform():
    """The study's configuration, and its sweeps on every platform; the platform must be chosen."""
    try:
        study = load_study(Path(CONFIG))
        if INVOCATION.platform is None:
            raise ConfigError(
                "no platform is chosen: use a profile, as in `snakemake --profile profiles/local`, "
                f"or `--config platform=NAME` with one of {', '.join(study.platforms)}"
            )
        lookup("platform", INVOCATION.platform, study.platforms)
    except ConfigError as error:
        raise WorkflowError(str(error)) from None
    return study, cells.expand_study(study)


STUDY, SWEEPS = study_of_platform()
CELLS = {cell: planned for cell, (planned, _) in cells.merge(SWEEPS.values()).items()}
OF_PLATFORM = {name: each for name, each in SWEEPS.items() if each.platform == INVOCATION.platform}


def known(kind, name, of):
    """What is called so, or a refusal with the mistake in its file, or with a name that there is."""
    try:
        return lookup(kind, name, of)
    except ConfigError as error:
        raise WorkflowError(str(error)) from None


def sweep_of(name):
    """The sweep of this name; a target may name one that does not exist."""
    return known("sweep", name, SWEEPS)


def cell_named(name):
    """The cell of this id; one that cannot run is refused with the reason."""
    planned = known("cell", name, CELLS)
    if not planned.feasible:
        raise WorkflowError(f"{name} cannot run: {planned.reason}")
    return planned.cell


def chosen_sweeps():
    """The sweeps that are run unless targets on the command line name others."""
    platform, specs = INVOCATION.platform, STUDY.sweeps
    named = [(name, known("sweep", name, specs)) for name in INVOCATION.sweeps]
    of_platform = [each for each in named if platform in STUDY.platforms_of(each[1])]
    chosen = [cells.view_of(*each, platform) for each in of_platform]
    if not chosen:
        there = sorted({sweep.spec for sweep in OF_PLATFORM.values()})
        raise WorkflowError(
            f"none of the sweeps {', '.join(INVOCATION.sweeps)} is for platform "
            f"{INVOCATION.platform}; these are: {', '.join(there) or 'none'}. Choose with --config "
            "'sweeps=[NAME]', or name the platform in the sweep's file"
        )
    return [sweep_of(name).name for name in chosen]


def on_the_command_line(pattern):
    """What stands for the groups of a pattern in targets below the results directory."""
    found = re.findall(rf"(?<!\S){re.escape(RESULTS)}/{pattern}", " ".join(sys.argv))
    return [each for groups in found for each in ([groups] if isinstance(groups, str) else groups)]


def asked_for():
    """The sweeps that are chosen, or whose files are targets on the command line.

    They are looked up before Snakemake reads its targets: it would show the frames of a function
    that refuses an input.
    """
    views = on_the_command_line(r"sweeps/([^/\s]+)/")
    views += on_the_command_line(r"comparisons/([^/\s]+)_vs_([^/\s]+)/")
    takes_targets = workflow.is_main_process and "--unlock" not in sys.argv
    if takes_targets and not on_the_command_line(r"(\S)"):
        views += chosen_sweeps()
    return {name: sweep_of(name) for name in views}


ASKED_FOR = asked_for()
if workflow.is_main_process:
    for mistake in SWEEPS.mistakes:
        print(f"Left out, as no sweep needs it that is asked for: {mistake}", file=sys.stderr)


def refuse_unreadable_tokens():
    """Refuse, in a sentence, tokens that this user cannot read, of sweeps that are asked for and of
    single runs on the command line."""
    named = on_the_command_line(r"cells/((?:[^/\s]+/){2}[^/\s]+)/run\d+\b(?!/job\.sh)")
    asked = [of.cell for sweep in ASKED_FOR.values() for of in sweep.cells]
    asked += [cell_named(name) for name in named]
    for data in sorted({cell.data for cell in asked}, key=str):
        tokens = results.tokens(Path(RESULTS), data)
        if tokens and (unreadable := results.unreadable_tokens(tokens)):
            raise WorkflowError(unreadable)


refuse_unreadable_tokens()


def say_unchecked():
    """Before the first run on a platform of Slurm: say if no check of its file has passed."""
    name = INVOCATION.platform
    if check.is_due(Path(RESULTS), name, STUDY.platforms[name]):
        print(
            f"No check of platform {name} has passed with the file that it has now: `make check "
            f"PLATFORM={name}` tries its account, Python, sensors and clocks by a job of a minute",
            file=sys.stderr,
        )


if workflow.is_main_process:
    say_unchecked()


wildcard_constraints:
    sweep=r"[A-Za-z0-9.-]+",
    cell=r"[^/]+/[^/]+/[^/]+",
    run=r"[0-9]+",


def runs_of(sweep):
    """Every run that a sweep asks for, as (cell, run)."""
    return [
        (planned.cell.id, run)
        for planned in sweep_of(sweep).cells
        if planned.feasible
        for run in planned.runs
    ]


# Over all sweeps of the platform, because two that are asked for together run side by side.
ORDER = order.places(
    {run for name in OF_PLATFORM for run in runs_of(name)},
    INVOCATION.order_seed,
)


def run_priority(wildcards):
    """Higher for a run that is earlier in the order; the same for its script.

    A script takes one of the runs in flight while it is rendered, and its run then has the highest
    priority of all that are ready. So those in flight are the earliest in the order, not those
    whose scripts came first. It also takes the run's cores: on this machine a run follows a run,
    and no analysis comes between them.
    """
    place = ORDER.get((wildcards.cell, int(wildcards.run)))
    return 0 if place is None else place.runs + 1 - place.place


def run_file(run, name):
    """A file of one run."""
    return f"{results.run_directory(Path(RESULTS), *run)}/{name}"


def cell_of(wildcards):
    """The cell that a job is for; one that cannot run is refused with the reason."""
    return cell_named(wildcards.cell)


def run_inputs(wildcards):
    """The script and the tokens. Neither's age matters to a run that has its result: an edited cell
    has another directory. (To one that has none it must: Snakemake does not run what only depends
    on ancient files that are just being made anew.)
    """
    tokens = results.tokens(Path(RESULTS), cell_of(wildcards).data)
    run = (wildcards.cell, wildcards.run)
    files = [run_file(run, "job.sh"), *([str(tokens)] if tokens else [])]
    finished = Path(run_file(run, "outcome.json")).exists()
    return [ancient(file) for file in files] if finished else files


def platform_file(wildcards):
    """What a script is rendered from besides its cell: who pays, where, with which interpreter.

    A run that waits, runs or has its result keeps the script that it was submitted with; one that
    never was submitted, or failed, is rendered again after the file was edited.
    """
    path = f"{CONFIG}/platforms/{cell_of(wildcards).hardware.platform}.yaml"
    run = (wildcards.cell, wildcards.run)
    submitted = Path(run_file(run, "job.json")).exists()
    failed = Path(run_file(run, "failure.json")).exists()
    return ancient(path) if submitted and not failed or is_only_read(wildcards) else path


def is_only_read(wildcards):
    """Whether a run is another user's, of which this one can make nothing anew."""
    run = (wildcards.cell, wildcards.run)
    return why_only_read(results.run_directory(Path(RESULTS), *run)) is not None


def reduce_inputs(wildcards):
    """What a run's summary and tables are made of and by. Their age matters only to a user who can
    make them anew.
    """
    run = (wildcards.cell, wildcards.run)
    files = [
        run_file(run, "outcome.json"),
        run_file(run, "cell.json"),
        *source_files("analysis.__main__"),
    ]
    return [ancient(each) for each in files] if is_only_read(wildcards) else files


def scheduler(wildcards):
    """slurm or local, as the cell's platform has it."""
    return STUDY.platforms[cell_of(wildcards).hardware.platform].scheduler


def run_threads(wildcards):
    """A run on this machine has it to itself: an analysis beside it would be measured too."""
    return workflow.cores if scheduler(wildcards) == "local" else 1


def run_share(wildcards):
    """How many of the runs in flight a run counts for.

    A run on this machine counts for all of them, because a target may belong to this machine
    although the profile is that of a cluster.
    """
    resource = workflow.global_resources.get("runs_in_flight")
    # Within a job of Slurm's, Snakemake has the resource without a value.
    most = 1 if resource is None or resource.value is None else resource.value
    return most if scheduler(wildcards) == "local" else 1


def token_limit(wildcards):
    """The option that bounds the corpus, where its configuration does."""
    limit = STUDY.data[wildcards.data].maximum_tokens
    return f"--maximum-tokens {limit}" if limit else ""


def described(wildcards):
    """A sweep's description as JSON without "<": `snakemake --report` writes what rules are given
    into a script, where "</script>" would end it.
    """
    return json.dumps(sweep_of(wildcards.sweep).description).replace("<", "\\u003c")


def summaries(wildcards):
    """The summary of every measured run that a sweep asks for."""
    return [run_file(run, "summary.json") for run in runs_of(wildcards.sweep) if not profiled(run)]


def made_of(sweep):
    """A sweep's report, and all that it rests on, down to the outcomes.

    Snakemake does not miss what lies between two files that are there: a report that is younger
    than what is left of its sources would make up for tables that are gone.
    """
    paths = sweep_paths(sweep)
    runs = runs_of(sweep)
    of_runs = [
        run_file(run, name)
        for run in runs
        for name in ("outcome.json", *(TRACE_TABLES if profiled(run) else REDUCED))
    ]
    tables = [sweep_table(name, sweep) for name in TABLES]
    return [str(paths.report), str(paths.plan), str(paths.figures), *tables, *of_runs]


def miss_runs(wildcards):
    """Have Snakemake make the outcomes that a page's sweep lacks: asked for the page alone, it would
    look only whether the page is younger than what is left of its sources. No file is an input.
    """
    if workflow.is_main_process:
        outcomes = [run_file(run, "outcome.json") for run in runs_of(wildcards.sweep)]
        workflow.dag.forcefiles.update(each for each in outcomes if not Path(each).exists())
    return []


def sweep_paths(sweep="{sweep}"):
    """Where the files of a sweep lie; as a pattern unless it is told."""
    return results.sweep_paths(Path(RESULTS), sweep)


def sweep_table(name, sweep="{sweep}"):
    """A table of a sweep."""
    return str(sweep_paths(sweep).table(name))


def trace_tables(wildcards):
    """The tables of every profiled run that a sweep asks for."""
    return [
        run_file(run, table)
        for run in runs_of(wildcards.sweep)
        if profiled(run)
        for table in TRACE_TABLES
    ]


def profiled(run):
    """Whether a run, as (cell, run), is the one that is profiled, apart from the measured ones."""
    return run[1] == results.PROFILED_RUN


@functools.cache
def source_files(*modules):
    """The files that modules run with: what they made is made anew when one of these changes."""
    return list(map(str, import_graph.files_behind(*modules)))


def configuration_files(wildcards):
    """Every file of the configuration."""
    return sorted(str(path) for path in Path(CONFIG).rglob("*.yaml"))


def show_reports():
    """Say where the pages of the sweeps and comparisons are that were asked for."""
    named = on_the_command_line(r"((?:sweeps|comparisons)/[^/\s]+)/")
    for directory in dict.fromkeys(named or [f"sweeps/{name}" for name in ASKED_FOR]):
        for page in Path(RESULTS, directory).glob("*.html"):
            print(f"look at {page}", file=sys.stderr)


def say_what_changed():
    """After a failure: name sweeps that have other cells than when the workflow began. Jobs that
    began since then looked for those.
    """
    now = cells.expand_study(load_study(Path(CONFIG)))

    def ids(sweep):
        return {planned.cell.id for planned in sweep.cells} if sweep else None

    for name, sweep in ASKED_FOR.items():
        if ids(now.get(name)) != ids(sweep):
            print(
                f"{name}: its files, or a trainer's program, changed while the workflow ran. Give "
                "the same command again: it plans new cells, and keeps the results of those that "
                "did not change.",
                file=sys.stderr,
            )


def report_what_there_is():
    """After a failure: show the sweeps with what has been measured, and with what failed.

    The tables are dated back, so that the next invocation knows them to be unfinished: Snakemake
    takes a table that is younger than those of its inputs that exist for finished. It also takes
    one for finished whose inputs have the checksums that it remembers, so it is made to forget
    those of tables that were whole before. Only what was asked for is shown, unless that is single
    runs.
    """
    for name, sweep in (ASKED_FOR or OF_PLATFORM).items():
        paths = sweep_paths(name)
        if not paths.plan.exists() or all(
            Path(run_file(run, "outcome.json")).exists() for run in runs_of(name)
        ):
            continue
        tables = [sweep_table(table, name) for table in TABLES]
        shell(
            "python -m workflow_lib.analysis collect --plan {paths.plan:q}"
            " --results {RESULTS:q} --output {paths.directory:q}"
            " && touch -d 2000-01-01 {tables:q}"
            " && python -m workflow_lib.report figures --tables {paths.directory:q}"
            " --output {paths.figures:q}"
            " && python -m workflow_lib.report page --sweep {name:q} --results {RESULTS:q}"
            " --description={sweep.description:q} --directory {paths.directory:q}"
            " && echo 'Some runs have no result. What there is, and why: '{paths.report:q}"
        )
        for table in tables:
            workflow.persistence.cleanup_metadata(IOFile(table))
