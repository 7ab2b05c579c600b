"""Looks whether the text that a run trains on is there, before it is submitted."""

from __future__ import annotations

from pathlib import Path

from workflow_lib import results
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records import Cell


def check(results_directory: Path, cell: Cell) -> None:
    """Raise SubmissionError if the cell trains on text whose tokens are missing.

    An archive, and often a copy of the results, has their description alone.
    """
    description = results.tokens(results_directory, cell.data)
    if description is None:
        return
    for needed, again in (
        (description, ""),
        (results.token_array(description), " --forcerun tokenize"),
    ):
        if not needed.exists():
            raise SubmissionError(
                f"{needed} is not there, on which {cell.id} trains: "
                f"`snakemake --profile …{again} --until render tokenize` makes it"
            )
