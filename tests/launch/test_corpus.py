"""Runs of one cell train on the same text, or are not submitted."""

import dataclasses

import pytest

from tests.launch import scripts
from workflow_lib import results
from workflow_lib.launch import submit
from workflow_lib.launch.schedulers.refusals import SubmissionError
from workflow_lib.records.cell import Data
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.whole_files import write_json


@pytest.fixture
def cell(tmp_path):
    """A cell that trains on text, whose tokens are there."""
    found = dataclasses.replace(scripts.planned("demo").cell, data=Data("mine", "text"))
    description = results.tokens(tmp_path, found.data)
    plain = {"tokens": 3, "dtype": "uint16", "sha256": "now"}
    write_json(description, plain)
    results.token_array(description).write_bytes(bytes(6))
    return found


def trained(tmp_path, cell, sha256, ended=True):
    """A run of the cell on tokens of that checksum."""
    paths = RunPaths(results.run_directory(tmp_path, cell.id, 1))
    rank = RankRecord(
        0, "n1", 0, "H200", 0, 0, 0, 0, 1, pid=1, started_unix_s=0.0, tokens_sha256=sha256
    )
    write_json(paths.rank(0), rank)
    if ended:
        write_json(paths.outcome, {})
    return paths


@pytest.mark.parametrize("found", ["the same", "unknown", "no result", "damaged", "synthetic"])
def test_a_run_that_is_not_known_to_have_had_other_tokens_is_no_reason(tmp_path, cell, found):
    sha256 = {"the same": "now", "unknown": None}.get(found, "before")
    paths = trained(tmp_path, cell, sha256, ended=found != "no result")
    if found == "damaged":
        paths.rank(0).write_text("{")
    if found == "synthetic":
        cell = dataclasses.replace(cell, data=Data("synthetic", "synthetic"))
    submit.check(tmp_path, cell)


def test_a_finished_run_on_other_tokens_is_named(tmp_path, cell):
    paths = trained(tmp_path, cell, "before")
    with pytest.raises(SubmissionError, match=str(paths.directory)):
        submit.check(tmp_path, cell)
