# What a sweep will run, and what it cannot.


rule plan:
    input:
        configuration_files,
        source_files("plan", PROJECTION),
    output:
        str(sweep_paths().plan),
    log:
        f"{RESULTS}/logs/plan/{{sweep}}.log",
    # First, so that what watches runs knows which there are. A run on this machine takes all cores,
    # and no plan would be there before the last run.
    priority: 1_000_000
    conda:
        "../envs/workflow.yaml"
    params:
        config=CONFIG,
    shell:
        "python -m workflow_lib.plan --config {params.config:q} --sweep {wildcards.sweep:q}"
        " --output {output:q} --quiet 2>&1 | tee {log:q}"
