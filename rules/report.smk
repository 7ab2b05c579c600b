# From tables to figures and the page, and what `snakemake --report` shows of them.


report: "../workflow_lib/report/captions/workflow.rst"


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
        report(
            directory(f"{RESULTS}/sweeps/{{sweep}}/figures"),
            patterns=["{figure}.svg"],
            caption="../workflow_lib/report/captions/figure.rst",
            category="{sweep}",
            subcategory="Figures",
            labels={"figure": "{figure}"},
        ),
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
        report(
            f"{RESULTS}/sweeps/{{sweep}}/report.html",
            caption="../workflow_lib/report/captions/page.rst",
            category="{sweep}",
            subcategory="Page",
            labels={"page": "everything on one page"},
        ),
    log:
        f"{RESULTS}/logs/page/{{sweep}}.log",
    group:
        "report"
    conda:
        "../envs/workflow.yaml"
    params:
        results=subpath(output[0], ancestor=3),
        directory=subpath(output[0], parent=True),
        description=described,
    shell:
        "python -m workflow_lib.report page --sweep {wildcards.sweep:q}"
        " --description-json={params.description:q}"
        " --results {params.results:q} --directory {params.directory:q} 2>&1 | tee {log:q}"
