# From raw files to tables.


rule reduce:
    input:
        outcome=f"{RESULTS}/cells/{{cell}}/run{{run}}/outcome.json",
        cell=f"{RESULTS}/cells/{{cell}}/run{{run}}/cell.json",
        sources=analysis_sources(),
    output:
        f"{RESULTS}/cells/{{cell}}/run{{run}}/summary.json",
    log:
        f"{RESULTS}/logs/reduce/{{cell}}/run{{run}}.log",
    group:
        "reduce"
    conda:
        "../envs/workflow.yaml"
    params:
        directory=subpath(output[0], parent=True),
    shell:
        "python -m workflow_lib.analysis reduce {params.directory:q} 2>&1 | tee {log:q}"


rule collect:
    input:
        summaries,
        plan=f"{RESULTS}/sweeps/{{sweep}}/plan.parquet",
        sources=analysis_sources(),
    output:
        runs=f"{RESULTS}/sweeps/{{sweep}}/runs.parquet",
        cells=f"{RESULTS}/sweeps/{{sweep}}/cells.parquet",
        gpus=f"{RESULTS}/sweeps/{{sweep}}/gpus.parquet",
        overhead=f"{RESULTS}/sweeps/{{sweep}}/overhead.parquet",
    log:
        f"{RESULTS}/logs/collect/{{sweep}}.log",
    group:
        "report"
    conda:
        "../envs/workflow.yaml"
    params:
        results=subpath(output.runs, ancestor=3),
        directory=subpath(output.runs, parent=True),
    shell:
        "python -m workflow_lib.analysis collect --plan {input.plan:q}"
        " --results {params.results:q} --output {params.directory:q} 2>&1 | tee {log:q}"
