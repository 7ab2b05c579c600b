# From raw files to tables.
ANALYSIS_SOURCES = source_files("analysis", "records.py", "formulas.py")


rule reduce:
    input:
        outcome=f"{RESULTS}/cells/{{cell}}/run{{run}}/outcome.json",
        cell=f"{RESULTS}/cells/{{cell}}/run{{run}}/cell.json",
        sources=ANALYSIS_SOURCES,
    output:
        f"{RESULTS}/cells/{{cell}}/run{{run}}/summary.json",
    params:
        directory=subpath(output[0], parent=True),
    group:
        "reduce"
    shell:
        "{PYTHON} -m workflow_lib.analysis reduce {params.directory:q}"


def summaries(wildcards):
    """The summary of every run that a sweep asks for."""
    return [run_file(run, "summary.json") for run in runs_of(wildcards.sweep)]


rule collect:
    input:
        summaries,
        plan=f"{RESULTS}/sweeps/{{sweep}}/plan.parquet",
        sources=ANALYSIS_SOURCES,
    output:
        runs=f"{RESULTS}/sweeps/{{sweep}}/runs.parquet",
        cells=f"{RESULTS}/sweeps/{{sweep}}/cells.parquet",
        gpus=f"{RESULTS}/sweeps/{{sweep}}/gpus.parquet",
    params:
        results=RESULTS,
        directory=subpath(output[0], parent=True),
    group:
        "report"
    shell:
        "{PYTHON} -m workflow_lib.analysis collect --plan {input.plan:q}"
        " --results {params.results:q} --output {params.directory:q}"
