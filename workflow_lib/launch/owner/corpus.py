"""Looks whether the text that a run trains on is there, before it is submitted."""

from __future__ import annotations

from pathlib import Path

from workflow_lib import records, results
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records import Cell

#: bytes of a token by its type
_TOKEN_BYTES = {"uint16": 2, "uint32": 4}


def check(results_directory: Path, cell: Cell) -> None:
    """Raise SubmissionError if the cell trains on text whose tokens are missing or damaged.

    An archive, and often a copy of the results, has their description alone.
    """
    description = results.tokens(results_directory, cell.data)
    if description is None:
        return
    tokens = results.token_array(description)
    if not description.exists():
        raise _refusal(f"{description} is not there", cell, "")
    if not tokens.exists():
        raise _refusal(f"{tokens} is not there", cell)
    try:
        stated = records.read_json(description)
        size = int(stated["tokens"]) * _TOKEN_BYTES[stated["dtype"]]
    except (KeyError, TypeError, ValueError):
        raise _refusal(f"{description} does not describe the tokens", cell) from None
    if (found := tokens.stat().st_size) != size:
        raise _refusal(f"{tokens} has {found} bytes, not {size} as {description.name} states", cell)


def _refusal(what: str, cell: Cell, again: str = " --forcerun tokenize") -> SubmissionError:
    return SubmissionError(
        f"{what}, on which {cell.id} trains: `snakemake --profile …{again} --until render "
        "tokenize` makes it"
    )
