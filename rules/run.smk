# From a cell to its raw files. Nothing here depends on the analysis, so that editing the analysis
# never trains anything again; an edited cell has another directory, so that exactly it is trained.


rule tokenize:
    output:
        # Kept while it is made anew: it says which tokens the array beside it must have.
        update(f"{RESULTS}/data/{{data}}/tokens.json"),
    log:
        f"{RESULTS}/logs/tokenize/{{data}}.log",
    conda:
        "../envs/workflow.yaml"
    params:
        tokenizer=lambda wildcards: STUDY.data[wildcards.data].tokenizer,
        sources=lambda wildcards: list(STUDY.data[wildcards.data].sources),
        limit=token_limit,
        directory=subpath(output[0], parent=True),
    shell:
        "python -m workflow_lib.trainers.native.tokenize --output {params.directory:q}"
        " --tokenizer={params.tokenizer:q} {params.limit} -- {params.sources:q} 2>&1 | tee {log:q}"


rule render:
    input:
        platform_file,
    output:
        cell=f"{RESULTS}/cells/{{cell}}/run{{run}}/cell.json",
        script=f"{RESULTS}/cells/{{cell}}/run{{run}}/job.sh",
    log:
        f"{RESULTS}/logs/render/{{cell}}/run{{run}}.log",
    priority: run_priority
    conda:
        "../envs/workflow.yaml"
    threads: run_threads
    resources:
        runs_in_flight=run_share,
    params:
        config=CONFIG,
        results=subpath(output.cell, ancestor=6),
        root=ROOT,
    shell:
        "python -m workflow_lib.launch render --config {params.config:q}"
        " --results {params.results:q} --root {params.root:q}"
        " --cell {wildcards.cell:q} --run {wildcards.run} 2>&1 | tee {log:q}"


# Snakemake itself waits for it, in a thread: see wait.smk.
rule run:
    # Snakemake itself waits, in a thread.
    input:
        run_inputs,
    output:
        f"{RESULTS}/cells/{{cell}}/run{{run}}/outcome.json",
    log:
        f"{RESULTS}/logs/run/{{cell}}/run{{run}}.log",
    priority: run_priority
    threads: run_threads
    resources:
        runs_in_flight=run_share,
    params:
        scheduler=scheduler,
        directory=subpath(output[0], parent=True),
    run:
        note_place(wildcards)
        await_earlier(wildcards)
        wait_for(params.directory, params.scheduler, log[0], wildcards)
