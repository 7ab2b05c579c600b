"""Dimensions of published models, and what configuration files say of runs beyond tables.

A table of results names a model and its degrees. The files that launch the runs say more, and some
of it differs from what the model's name suggests: NVIDIA's Llama 3.1 405B ran with GPT-2's
vocabulary and 16 key-value heads. ``data/configurations.csv`` holds what these files say, each with
its address.
"""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass, replace
from importlib import resources

from workflow_lib.projection.layouts import Shape
from workflow_lib.records import bounds

_DATA = resources.files("research.projection") / "data"
_MODELS = _DATA / "models.csv"
_CONFIGURATIONS = _DATA / "configurations.csv"
_DIMENSIONS = re.compile(r"layers (\d+), hidden (\d+)|hidden (\d+), layers (\d+)")


@functools.cache
def _models() -> tuple[tuple[re.Pattern[str], Shape], ...]:
    with _MODELS.open(encoding="utf-8") as lines:
        return tuple((re.compile(row["pattern"]), _shape(row)) for row in csv.DictReader(lines))


def _shape(row: dict[str, str]) -> Shape:
    counts = {
        name: int(row[name])
        for name in (
            *("layers", "hidden", "ffn", "heads", "kv_heads", "head_size", "vocabulary"),
            *("experts", "experts_per_token", "shared_ffn"),
        )
    }
    flags = {name: row[name] == "yes" for name in ("gated", "tied")}
    return Shape(name=row["name"], **flags, **counts)  # type: ignore[arg-type]


def published_shape(model: str, notes: str = "") -> Shape | None:
    """The shape of a published model by its name, or by dimensions in the row's notes (taken as a
    GPT: two matrices, four times as wide as the hidden state); None if neither gives it."""
    name = re.sub(r"[^a-z0-9]", "", model.lower())
    for pattern, shape in _models():
        if pattern.fullmatch(name):
            return shape
    found = _DIMENSIONS.search(notes)
    if not found:
        return None
    layers, hidden = (int(each) for each in (found[1] or found[4], found[2] or found[3]))
    heads = re.search(r"heads (\d+)", notes)
    vocabulary = re.search(r"vocab (\d+)", notes)
    count = int(heads[1]) if heads else hidden // 128
    if not (0 < count <= hidden and 0 < layers <= bounds.LAYERS.most):
        return None
    return Shape(
        name=model,
        layers=layers,
        hidden=hidden,
        ffn=4 * hidden,
        gated=False,
        heads=count,
        kv_heads=count,
        head_size=hidden // count,
        vocabulary=int(vocabulary[1]) if vocabulary else 51200,
        tied=True,
    )


@dataclass(frozen=True)
class Configuration:
    """What configuration files say of a source's runs of one model. A value that they do not
    state, or that the table states as well, is None."""

    #: the container that the runs were in: releases of a source may mix containers
    container: str | None = None
    #: entries of the head's matrix, padded
    vocabulary: int | None = None
    kv_heads: int | None = None
    virtual_stages: int | None = None
    #: none, selective or full
    recomputation: str | None = None
    #: bytes of a gradient that replicas exchange
    gradient_bytes: int | None = None

    def shape(self, shape: Shape) -> Shape:
        """A model's shape as it ran."""
        return replace(
            shape,
            vocabulary=self.vocabulary or shape.vocabulary,
            kv_heads=self.kv_heads or shape.kv_heads,
        )


_NUMBERS = ("vocabulary", "kv_heads", "virtual_stages", "gradient_bytes")


@functools.cache
def _configurations() -> dict[tuple[str, str, str], Configuration]:
    with _CONFIGURATIONS.open(encoding="utf-8") as lines:
        return {
            (row["source"], row["variant"], row["model"]): Configuration(
                container=row["container"] or None,
                recomputation=row["recomputation"] or None,
                **{name: int(row[name]) for name in _NUMBERS if row[name]},
            )
            for row in csv.DictReader(lines)
        }


def configuration(source: str, variant: str, model: str) -> Configuration:
    """The configuration of a source's runs of a model with one software; empty if none is known."""
    return _configurations().get((source, variant, model), Configuration())
