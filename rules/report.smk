# From tables to figures and the page.
REPORT_SOURCES = source_files("report", "records.py")


rule figures:
    input:
        runs=f"{RESULTS}/sweeps/{{sweep}}/runs.parquet",
        cells=f"{RESULTS}/sweeps/{{sweep}}/cells.parquet",
        gpus=f"{RESULTS}/sweeps/{{sweep}}/gpus.parquet",
        sources=REPORT_SOURCES,
    output:
        directory(f"{RESULTS}/sweeps/{{sweep}}/figures"),
    params:
        directory=subpath(input.runs, parent=True),
    group:
        "report"
    shell:
        "{PYTHON} -m workflow_lib.report figures --tables {params.directory:q} --output {output:q}"


rule page:
    input:
        figures=f"{RESULTS}/sweeps/{{sweep}}/figures",
        plan=f"{RESULTS}/sweeps/{{sweep}}/plan.parquet",
        sources=REPORT_SOURCES,
    output:
        f"{RESULTS}/sweeps/{{sweep}}/report.html",
    params:
        results=RESULTS,
        directory=subpath(output[0], parent=True),
    group:
        "report"
    shell:
        "{PYTHON} -m workflow_lib.report page --sweep {wildcards.sweep:q}"
        " --results {params.results:q} --directory {params.directory:q}"


def report_what_there_is():
    """After a failure: show the sweeps with what has been measured, and with what failed.

    The tables are dated back, so that the next invocation knows them to be unfinished: Snakemake
    takes a table that is younger than those of its inputs that exist for finished.
    """
    for name, sweep in SWEEPS.items():
        directory = results.sweep_directory(Path(RESULTS), name)
        if sweep.platform != config["platform"] or not (directory / "plan.parquet").exists():
            continue
        shell(
            "{PYTHON} -m workflow_lib.analysis collect --plan {directory:q}/plan.parquet"
            " --results {RESULTS:q} --output {directory:q}"
            " && {PYTHON} -m workflow_lib.report figures --tables {directory:q}"
            " --output {directory:q}/figures"
            " && {PYTHON} -m workflow_lib.report page --sweep {name:q} --results {RESULTS:q}"
            " --directory {directory:q}"
            " && touch -d 2000-01-01 {directory:q}/runs.parquet {directory:q}/cells.parquet"
            " {directory:q}/gpus.parquet"
            " && echo 'Some runs have no result. What there is, and why: '{directory:q}/report.html"
        )
