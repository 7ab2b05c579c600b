# What a sweep will run, and what it cannot.
rule plan:
    input:
        lambda wildcards: sorted(str(path) for path in Path(CONFIG).rglob("*.yaml")),
        source_files("cells.py", "memory.py", "formulas.py", "plan.py"),
    output:
        f"{RESULTS}/sweeps/{{sweep}}/plan.parquet",
    params:
        config=CONFIG,
    shell:
        "{PYTHON} -m workflow_lib.plan --config {params.config:q} --sweep {wildcards.sweep:q}"
        " --output {output:q} --quiet"
