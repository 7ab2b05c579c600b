"""The workflow, for who reads or runs it from here; it is in workflow/, where the catalog looks."""


include: "workflow/Snakefile"
