# From tables to figures and the page, and what `snakemake --report` shows of them.


report: "../workflow_lib/report/captions/workflow.rst"


rule figures:
    input:
        **{name: sweep_table(name) for name in TABLES},
        sources=source_files("report.__main__"),
    output:
        report(
            directory(str(sweep_paths().figures)),
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
        **{name: sweep_table(name) for name in TABLES},
        figures=str(sweep_paths().figures),
        plan=str(sweep_paths().plan),
        nothing=miss_runs,
        sources=source_files("report.__main__"),
    output:
        report(
            str(sweep_paths().report),
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
