"""Triptych: power, performance and thermals of distributed training, measured cell by cell."""

from snakemake.utils import min_version

min_version("9.27")


configfile: "config/config.yaml"


include: "rules/study.smk"
include: "rules/lock.smk"
include: "rules/wait.smk"
include: "rules/damage.smk"
include: "rules/plan.smk"
include: "rules/run.smk"
include: "rules/analyse.smk"
include: "rules/report.smk"
include: "rules/compare.smk"


localrules:
    all,
    measured,
    plan,
    tokenize,
    render,
    run,


rule all:
    default_target: True
    input:
        [file for sweep in CHOSEN_SWEEPS for file in made_of(sweep)],


# Every run to its end and no analysis: for a host that only measures.
rule measured:
    input:
        [run_file(run, "outcome.json") for sweep in CHOSEN_SWEEPS for run in runs_of(sweep)],


onerror:
    report_what_there_is()
