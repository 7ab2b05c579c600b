"""Looks whether the text that a run trains on is there, before it is submitted."""

from __future__ import annotations

from pathlib import Path

from workflow_lib import records, results
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records import Cell, RankRecord, RecordError, RunPaths

#: bytes of a token by its type
_TOKEN_BYTES = {"uint16": 2, "uint32": 4}


def check(results_directory: Path, cell: Cell) -> None:
    """Raise SubmissionError if the cell trains on text whose tokens are missing or damaged.

    An archive, and often a copy of the results, has their description alone. If the text was
    tokenized anew, another run of the cell may have trained on other tokens: then raise it, too.
    """
    description = results.tokens(results_directory, cell.data)
    if description is None:
        return
    if unreadable := results.unreadable_tokens(description):
        raise SubmissionError(unreadable)
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
    _compare_with_other_runs(results_directory, cell, description, stated.get("sha256"))


def _compare_with_other_runs(
    results_directory: Path, cell: Cell, description: Path, sha256: object
) -> None:
    """Raise SubmissionError if a run of the cell that has its result trained on other tokens."""
    for other in results.runs_of_cell(results_directory, cell.id):
        paths = RunPaths(other)
        if not paths.outcome.exists():
            continue
        try:
            rank = records.read_if_there(paths.rank(0), RankRecord)
        except RecordError:
            continue  # the tables of that run say so
        if rank is not None and rank.tokens_sha256 not in (None, sha256):
            raise SubmissionError(
                f"{other} trained on other tokens of the text {cell.data.name} than {description} "
                f"states, so this run would not repeat it. Give the text as it was and tokenize "
                "again, name the other text anew in config/data, or delete the cell's runs"
            )


def _refusal(what: str, cell: Cell, again: str = " --forcerun tokenize") -> SubmissionError:
    return SubmissionError(
        f"{what}, on which {cell.id} trains: `snakemake --profile …{again} --until render "
        "tokenize` makes it"
    )
