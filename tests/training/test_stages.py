import pytest
import torch

from tests.training.cells import GPT, LLAMA, TRAINING
from workflow_lib.records import Degrees
from workflow_lib.trainers.native.layers import OutputHead, TokenEmbedding
from workflow_lib.trainers.native.mesh import single_process
from workflow_lib.trainers.native.model import (
    TransformerLayer,
    parts,
    split_into_stages,
    stage_bounds,
)
from workflow_lib.trainers.native.norms import RMSNorm
from workflow_lib.trainers.native.weights import Weights

WEIGHTS = Weights(single_process(torch.device("cpu")), 7, torch.float32)


def test_the_ends_of_the_model_go_to_the_first_and_the_last_stage():
    # embedding, four layers, norm, head
    first, last = split_into_stages(parts(LLAMA, WEIGHTS, TRAINING), (1, 3))

    assert [part.kind for part in first] == [TokenEmbedding, TransformerLayer]
    assert [part.kind for part in last] == [*[TransformerLayer] * 3, RMSNorm, OutputHead]


def test_positions_stay_with_the_embedding_that_they_are_added_to():
    # embedding, positions, four layers, norm, head: the layers are parts 2 to 5
    assert stage_bounds(parts(GPT, WEIGHTS, TRAINING), (2, 1, 1)) == [0, 4, 5, 8]


def test_one_stage_holds_all():
    degrees = Degrees()

    assert stage_bounds(parts(GPT, WEIGHTS, TRAINING), degrees.layers_of_stages(4)) == [0, 8]


def test_stages_that_leave_layers_over_are_refused():
    with pytest.raises(ValueError, match="hold 3 layers, but the model has 4"):
        stage_bounds(parts(LLAMA, WEIGHTS, TRAINING), (1, 2))
