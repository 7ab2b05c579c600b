# From a cell to its raw files. Nothing here depends on the analysis, so that editing the analysis
# never trains anything again; an edited cell has another directory, so that exactly it is trained.


def token_limit(wildcards):
    """The option that bounds the corpus, where its configuration does."""
    limit = STUDY.data[wildcards.data].maximum_tokens
    return f"--maximum-tokens {limit}" if limit else ""


rule tokenize:
    output:
        f"{RESULTS}/data/{{data}}/tokens.json",
    params:
        data=lambda wildcards: STUDY.data[wildcards.data],
        limit=token_limit,
        directory=subpath(output[0], parent=True),
    shell:
        "{PYTHON} -m workflow_lib.training.tokenize --output {params.directory:q}"
        " --tokenizer {params.data.tokenizer:q} {params.limit} {params.data.sources:q}"


rule render:
    output:
        cell=f"{RESULTS}/cells/{{cell}}/run{{run}}/cell.json",
        script=f"{RESULTS}/cells/{{cell}}/run{{run}}/job.sh",
    params:
        config=CONFIG,
        results=RESULTS,
        root=workflow.basedir,
    shell:
        "{PYTHON} -m workflow_lib.launch render --config {params.config:q}"
        " --results {params.results:q} --root {params.root:q}"
        " --cell {wildcards.cell:q} --run {wildcards.run}"


def run_inputs(wildcards):
    """The script and the tokens; neither's age matters once the run is done."""
    planned = CELLS[wildcards.cell]
    tokens = results.tokens(Path(RESULTS), planned.cell.data)
    script = f"{RESULTS}/cells/{wildcards.cell}/run{wildcards.run}/job.sh"
    return [ancient(script), *([ancient(str(tokens))] if tokens else [])]


def scheduler(wildcards):
    """slurm or local, as the cell's platform has it."""
    return STUDY.platforms[CELLS[wildcards.cell].cell.hardware.platform].scheduler


def run_threads(wildcards):
    """A run on this machine has it to itself: an analysis beside it would be measured too."""
    return workflow.cores if scheduler(wildcards) == "local" else 1


rule run:
    input:
        run_inputs,
    output:
        f"{RESULTS}/cells/{{cell}}/run{{run}}/outcome.json",
    params:
        scheduler=scheduler,
        directory=subpath(output[0], parent=True),
    threads: run_threads
    resources:
        runs_in_flight=1,
    shell:
        "{PYTHON} -m workflow_lib.launch run {params.directory:q} --scheduler {params.scheduler}"
