# From tables to figures and the page.


rule figures:
    input:
        runs=f"{RESULTS}/sweeps/{{sweep}}/runs.parquet",
        cells=f"{RESULTS}/sweeps/{{sweep}}/cells.parquet",
        gpus=f"{RESULTS}/sweeps/{{sweep}}/gpus.parquet",
        others=[
            f"{RESULTS}/sweeps/{{sweep}}/{table}.parquet"
            for table in ("steps", "series", "kernels", "traces")
        ],
        sources=source_files("report", "records"),
    output:
        directory(f"{RESULTS}/sweeps/{{sweep}}/figures"),
    log:
        f"{RESULTS}/logs/figures/{{sweep}}.log",
    group:
        "report"
    conda:
        "../envs/workflow.yaml"
    threads: 4
    params:
        directory=subpath(input.runs, parent=True),
    shell:
        "python -m workflow_lib.report figures --tables {params.directory:q}"
        " --output {output:q} --processes {threads} 2>&1 | tee {log:q}"


rule page:
    input:
        figures=f"{RESULTS}/sweeps/{{sweep}}/figures",
        plan=f"{RESULTS}/sweeps/{{sweep}}/plan.parquet",
        overhead=f"{RESULTS}/sweeps/{{sweep}}/overhead.parquet",
        sources=source_files("report", "records"),
    output:
        f"{RESULTS}/sweeps/{{sweep}}/report.html",
    log:
        f"{RESULTS}/logs/page/{{sweep}}.log",
    group:
        "report"
    conda:
        "../envs/workflow.yaml"
    params:
        results=subpath(output[0], ancestor=3),
        directory=subpath(output[0], parent=True),
        description=lambda wildcards: SWEEPS[wildcards.sweep].description,
    shell:
        "python -m workflow_lib.report page --sweep {wildcards.sweep:q}"
        " --description={params.description:q}"
        " --results {params.results:q} --directory {params.directory:q} 2>&1 | tee {log:q}"
