"""Shapes count what the workflow's formulas count, but for norms and biases."""

from pathlib import Path

import pytest

from research.projection.models import published_shape
from workflow_lib.formulas import flops_per_token, parameters
from workflow_lib.projection.layouts import Shape
from workflow_lib.study import load_study

STUDY = load_study(Path("config"))


@pytest.mark.parametrize("name", ["llama3-8b", "llama3-70b", "gpt3-175b", "mixtral-8x7b"])
def test_parameters_are_those_of_the_formulas(name):
    model = STUDY.models[name].record(name)
    counted = parameters(model, model.padded_vocabulary_size)
    assert Shape.of(model).parameters == pytest.approx(counted.total, rel=2e-3)


@pytest.mark.parametrize("name", ["llama3-70b", "gpt3-175b", "mixtral-8x7b"])
def test_flops_are_those_of_the_formulas(name):
    model = STUDY.models[name].record(name)
    shape = Shape.of(model)
    products = 6 * (shape.layers * shape.layer_active_parameters + shape.end_parameters)
    attended = 6 * shape.layers * model.sequence_length * shape.heads * shape.head_size
    assert products + attended == pytest.approx(flops_per_token(model).causal, rel=2e-3)


def test_published_names_are_known():
    shape = published_shape("Llama 3.1 405B")
    assert shape is not None
    assert (shape.layers, shape.hidden, shape.kv_heads) == (126, 16384, 8)
    assert published_shape("A model of nobody") is None


def test_dimensions_in_notes_will_do():
    shape = published_shape("X", "layers 24, hidden 2304; heads 24")
    assert shape is not None
    assert (shape.layers, shape.hidden, shape.ffn, shape.head_size) == (24, 2304, 9216, 96)
