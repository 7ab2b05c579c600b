"""What a source's configuration files say of a run and its table of results does not.

A table of results names a model and its degrees. The files that launch the runs say more, and some
of it differs from what the model's name suggests: NVIDIA's Llama 3.1 405B ran with GPT-2's
vocabulary and 16 key-value heads. ``data/configurations.csv`` holds what these files say, each with
its address.
"""

from __future__ import annotations

import csv
import functools
from dataclasses import dataclass, replace
from importlib import resources

from workflow_lib.projection.shapes import Shape

_FILE = resources.files("workflow_lib.projection") / "data" / "configurations.csv"


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


@functools.cache
def _known() -> dict[tuple[str, str, str], Configuration]:
    with _FILE.open(encoding="utf-8") as lines:
        return {
            (row["source"], row["variant"], row["model"]): Configuration(
                container=row["container"] or None,
                vocabulary=int(row["vocabulary"]) if row["vocabulary"] else None,
                kv_heads=int(row["kv_heads"]) if row["kv_heads"] else None,
                virtual_stages=int(row["virtual_stages"]) if row["virtual_stages"] else None,
                recomputation=row["recomputation"] or None,
                gradient_bytes=int(row["gradient_bytes"]) if row["gradient_bytes"] else None,
            )
            for row in csv.DictReader(lines)
        }


def configuration(source: str, variant: str, model: str) -> Configuration:
    """The configuration of a source's runs of a model with one software; empty if none is known."""
    return _known().get((source, variant, model), Configuration())
