"""How a model's parts are divided over the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from workflow_lib.trainers.native.model import Part, TransformerLayer


def bounds(sequence: Sequence[Part], layers_of_stages: Sequence[int]) -> list[int]:
    """Where stages begin in a list of parts, and where the last one ends: stages + 1 numbers.

    ``layers_of_stages`` holds the number of transformer layers of each stage. Parts before the
    layers are on the first stage, parts after them on the last.

    Raises ValueError if the stages do not hold exactly the model's layers.
    """
    layers = [place for place, part in enumerate(sequence) if part.kind is TransformerLayer]
    if sum(layers_of_stages) != len(layers):
        raise ValueError(
            f"the stages hold {sum(layers_of_stages)} layers, but the model has {len(layers)}: "
            "make stage_layers agree with the model"
        )
    begins = [0]
    for stage in range(1, len(layers_of_stages)):
        begins.append(layers[sum(layers_of_stages[:stage])])
    return [*begins, len(sequence)]


def split(sequence: Sequence[Part], layers_of_stages: Sequence[int]) -> list[list[Part]]:
    """A model's parts, stage by stage; see ``bounds``."""
    ends = bounds(sequence, layers_of_stages)
    return [list(sequence[begin:end]) for begin, end in pairwise(ends)]
