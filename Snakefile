# Here as most look for it, and in workflow/ where the catalog of Snakemake and snakedeploy do.
include: "workflow/Snakefile"


# Snakemake takes no default from a file that is included.
rule default:
    default_target: True
    input:
        rules.all.input,
    localrule: True
