import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.training.cells import LLAMA, cell
from workflow_lib.records.cell import Data
from workflow_lib.records.degrees import Degrees, coordinates
from workflow_lib.trainers.native.data import (
    DataError,
    SyntheticTokens,
    TokenFile,
    open_source,
    step_batches,
)
from workflow_lib.trainers.native.mesh import Mesh

CPU = torch.device("cpu")


def write_tokens(directory, ids, vocabulary_size=257, **changes):
    np.asarray(ids, dtype=np.uint16).tofile(directory / "tokens.bin")
    plain = {"dtype": "uint16", "tokens": len(ids), "vocabulary_size": vocabulary_size}
    (directory / "tokens.json").write_text(json.dumps(plain | changes))
    return directory / "tokens.json"


def rows(degrees, rank, step=3, **training):
    one = cell(LLAMA, degrees, **training)
    mesh = Mesh(degrees, rank, coordinates(rank, degrees), CPU)
    return [ids for ids, _ in step_batches(SyntheticTokens(257), one, mesh, step)]


def test_ranks_share_out_one_global_batch():
    whole = torch.cat(rows(Degrees(), 0))
    pairs = rows(Degrees(dp=2), 0, micro_batch_size=2) + rows(Degrees(dp=2), 1, micro_batch_size=2)

    assert whole.shape == (4, 64)
    assert [len(pair) for pair in pairs] == [2, 2]
    assert torch.equal(torch.cat(pairs), whole)
    # Tensor-parallel ranks see the same sequences.
    degrees = Degrees(tp=2, dp=2)
    assert torch.equal(torch.cat(rows(degrees, 2)), torch.cat(rows(degrees, 3)))
    # Context-parallel ranks have an early and a late chunk of each.
    first, second = (torch.cat(rows(Degrees(cp=2), rank)) for rank in (0, 1))
    assert torch.equal(first, torch.cat([whole[:, :16], whole[:, 48:]], dim=1))
    assert torch.equal(second, whole[:, 16:48])


def test_steps_and_seeds_draw_other_sequences_and_a_repeat_the_same():
    base = torch.cat(rows(Degrees(), 0))

    assert torch.equal(torch.cat(rows(Degrees(), 0)), base)
    assert not torch.equal(torch.cat(rows(Degrees(), 0, step=4)), base)
    assert not torch.equal(torch.cat(rows(Degrees(), 0, seed=8)), base)


def test_targets_are_the_tokens_that_follow(tmp_path):
    description = write_tokens(tmp_path, list(range(200)))
    source = TokenFile(description, 257, 65)
    one = cell(LLAMA)
    mesh = Mesh(Degrees(), 0, coordinates(0, Degrees()), CPU)

    for ids, targets in step_batches(source, one, mesh, 0):
        assert torch.equal(targets, ids + 1)


def test_the_last_possible_sequence_is_the_whole_file(tmp_path):
    source = TokenFile(write_tokens(tmp_path, list(range(65))), 257, 65)

    assert source.sequence(0, 0, 0, 65).tolist() == list(range(65))


@pytest.mark.parametrize(
    ("ids", "changes", "said"),
    [
        (range(64), {}, "takes 65"),
        (range(100), {"vocabulary_size": 300}, "300 ids"),
        (range(100), {"tokens": 101}, "states 202"),
        (range(100), {"dtype": "teapot"}, "tokens.json"),
    ],
)
def test_tokens_that_do_not_fit_are_refused_by_name(tmp_path, ids, changes, said):
    description = write_tokens(tmp_path, list(ids), **changes)

    with pytest.raises(DataError, match=said) as caught:
        TokenFile(description, 257, 65)
    assert str(tmp_path) in str(caught.value)


def test_other_tokens_of_the_same_size_are_refused_by_their_checksum(tmp_path):
    ids = list(range(100))
    stated = hashlib.sha256(np.asarray(ids, dtype=np.uint16).tobytes()).hexdigest()
    description = write_tokens(tmp_path, ids, sha256=stated)
    assert TokenFile(description, 257, 65, compare=True).sha256 == stated
    assert TokenFile(description, 257, 65).sha256 is None

    array = tmp_path / "tokens.bin"
    array.write_bytes(array.read_bytes()[:-1] + b"\1")
    found = hashlib.sha256(array.read_bytes()).hexdigest()
    with pytest.raises(DataError) as caught:
        TokenFile(description, 257, 65, compare=True)
    for said in (str(array), found, stated, "--forcerun tokenize"):
        assert said in str(caught.value)


def test_an_id_beyond_the_vocabulary_is_refused_even_if_the_description_hides_it(tmp_path):
    source = TokenFile(write_tokens(tmp_path, [5] * 99 + [999]), 257, 100)

    with pytest.raises(DataError, match=r"999, .* 257"):
        source.sequence(0, 0, 0, 100)


def test_text_without_tokens_names_the_option_and_missing_tokens_the_command(tmp_path):
    one = replace(cell(LLAMA), data=Data("stdlib", "text"))

    with pytest.raises(DataError, match=r"'stdlib': .* --tokens"):
        open_source(one, None)
    with pytest.raises(DataError, match="python -m workflow_lib"):
        open_source(one, tmp_path / "tokens.json")
