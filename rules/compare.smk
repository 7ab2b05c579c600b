# Two sweeps side by side. The tables of both are made if they are not there: to compare what lies
# elsewhere, `make compare`.

COMPARED = ("cells", "runs", "gpus")
# What meters of the site showed, if the configuration has that.
METERS = [str(path) for path in [Path(CONFIG, "meters.yaml")] if path.is_file()]


rule compare:
    input:
        **{f"{name}_{side}": sweep_table(name, f"{{{side}}}") for side in "ab" for name in COMPARED},
        meters=METERS,
        sources=source_files("comparison.__main__"),
    output:
        page=f"{RESULTS}/comparisons/{{a}}_vs_{{b}}/comparison.html",
        table=f"{RESULTS}/comparisons/{{a}}_vs_{{b}}/comparison.parquet",
        figures=directory(f"{RESULTS}/comparisons/{{a}}_vs_{{b}}/figures"),
    log:
        f"{RESULTS}/logs/compare/{{a}}_vs_{{b}}.log",
    wildcard_constraints:
        a=r"[A-Za-z0-9.-]+",
        b=r"[A-Za-z0-9.-]+",
    conda:
        "../envs/workflow.yaml"
    params:
        a=subpath(input.cells_a, parent=True),
        b=subpath(input.cells_b, parent=True),
        directory=subpath(output.page, parent=True),
        meters=["--meters", *METERS] if METERS else [],
    shell:
        "python -m workflow_lib.comparison {params.a:q} {params.b:q}"
        " --output {params.directory:q} {params.meters:q} 2>&1 | tee {log:q}"
