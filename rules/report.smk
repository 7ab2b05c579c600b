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
    shell:
        "{PYTHON} -m workflow_lib.report page --sweep {wildcards.sweep:q}"
        " --results {params.results:q} --directory {params.directory:q}"
