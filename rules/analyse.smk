# From raw files to tables.


rule reduce:
    input:
        reduce_inputs,
    output:
        summary=f"{RESULTS}/cells/{{cell}}/run{{run}}/summary.json",
        steps=f"{RESULTS}/cells/{{cell}}/run{{run}}/steps.parquet",
        series=f"{RESULTS}/cells/{{cell}}/run{{run}}/series.parquet",
    log:
        f"{RESULTS}/logs/reduce/{{cell}}/run{{run}}.log",
    group:
        "reduce"
    conda:
        "../envs/workflow.yaml"
    params:
        directory=subpath(output.summary, parent=True),
    shell:
        "python -m workflow_lib.analysis reduce {params.directory:q} 2>&1 | tee {log:q}"


# One job a run: all of its traces, one after the other.
rule traces:
    input:
        reduce_inputs,
    output:
        kernels=f"{RESULTS}/cells/{{cell}}/run{{run}}/traces/kernels.parquet",
        traces=f"{RESULTS}/cells/{{cell}}/run{{run}}/traces/traces.parquet",
    log:
        f"{RESULTS}/logs/traces/{{cell}}/run{{run}}.log",
    conda:
        "../envs/workflow.yaml"
    params:
        directory=subpath(output.kernels, ancestor=2),
    shell:
        "python -m workflow_lib.analysis traces {params.directory:q} --quiet 2>&1 | tee {log:q}"


rule collect:
    input:
        summaries,
        traces=trace_tables,
        plan=str(sweep_paths().plan),
        sources=source_files("analysis.__main__"),
    output:
        **{name: sweep_table(name) for name in TABLES if name not in ("runs", "cells")},
        # Two are in `snakemake --report`, too.
        runs=report(
            sweep_table("runs"),
            caption="../workflow_lib/report/captions/runs.rst",
            category="{sweep}",
            subcategory="Tables",
            labels={"table": "runs: one row a run"},
        ),
        cells=report(
            sweep_table("cells"),
            caption="../workflow_lib/report/captions/cells.rst",
            category="{sweep}",
            subcategory="Tables",
            labels={"table": "cells: one row a cell"},
        ),
    log:
        f"{RESULTS}/logs/collect/{{sweep}}.log",
    group:
        "report"
    conda:
        "../envs/workflow.yaml"
    params:
        results=subpath(output.runs, ancestor=3),
        directory=subpath(output.runs, parent=True),
    # The pages that show earlier tables go first: whatever ends this, none outlives its tables.
    shell:
        "rm -f {params.directory:q}/report.html"
        " {params.results:q}/comparisons/{wildcards.sweep}_vs_*/comparison.html"
        " {params.results:q}/comparisons/*_vs_{wildcards.sweep}/comparison.html;"
        " python -m workflow_lib.analysis collect --plan {input.plan:q}"
        " --results {params.results:q} --output {params.directory:q} 2>&1 | tee {log:q}"
