"""The pages of comparisons with peers: records of ``research/engine_on_gpus.py --peer``.

Of each cell there is a record for each launch, which says by whom: triptych or a peer. The n-th
launches of both are a pair.
"""

from __future__ import annotations

import re
from itertools import groupby
from statistics import fmean
from typing import Any

from benchmarks.measuring.pairs import OURS, ratio_in_words
from research.pages.tables import RATIOS, document, head, link, of_tokens, table

#: platform/model-NNl/degrees_options_0
_ID = re.compile(r"[^/]+/(?P<model>.+)-(?P<layers>\d+)l/(?P<degrees>[^_]+)_(?P<options>.+)_0")


def page(note: str, name: str, records: list[dict[str, Any]]) -> str:
    """The page of one file: for each cell a table, and the ratios to its peers."""
    first = records[0]
    steps = " or ".join(map(str, sorted({record["steps"] for record in records})))
    blocks: list[str | list[str]] = [
        note,
        head("Is the engine as fast as its peers", first),
        f"`research/engine_on_gpus.py --peer`, torch {first['torch']}. Ours and peers trained "
        "the same model in the same layout, a launch of each in turn, both of a pair on one host. "
        f"A launch's speed is the median of {steps} steps on synthetic tokens. {RATIOS} "
        f"All settings of peers are in {link(name)}. {of_tokens(records)} Losses after so "
        "few steps differ, because initial weights do. MFU counts causal attention, and each "
        "precision's own peak ([Training](../explanation/training.md)).",
    ]
    ordered = sorted(records, key=lambda each: each["cell"])
    for cell, group in groupby(ordered, key=lambda each: str(each["cell"])):
        launches = list(group)
        model, layers, degrees, options = parts(cell)
        blocks += [f"## {model}, {layers} layers, `{degrees}`, `{options}`", _table(launches)]
        blocks += filter(None, [_division(launches)])
    return document(*blocks)


def _table(records: list[dict[str, Any]]) -> list[str]:
    ours, rows = _rates(records, OURS), []
    for by in dict.fromkeys(record["by"] for record in records):
        launches = [record for record in records if record["by"] == by]
        rates = _rates(records, by)
        rows.append(
            (
                *(_peer(launches[0]), str(len(launches)), f"{fmean(rates):,.0f}"),
                f"{100 * fmean(launch['mfu_causal'] for launch in launches):.1f}",
                f"{max(launch['peak_gb'] for launch in launches):.1f}",
                "–" if by == OURS else ratio_in_words(ours, rates),
            )
        )
    return table(("by", "launches", "tokens/s/GPU", "MFU, %", "peak GB", "ours to it"), rows)


def _division(records: list[dict[str, Any]]) -> str:
    """Who divided the layers over stages how, and how many parameters all have, in words.

    Nothing of one stage, and nothing of records from before these fields.
    """
    said = []
    counts = {record.get("parameters") for record in records}
    if len(counts) == 1 and None not in counts:
        said.append(f"Each model has {counts.pop():,} parameters.")
    divided = {
        _who(record): ", ".join(map(str, record["stage_layers"]))
        for record in records
        if len(record.get("stage_layers", ())) > 1
    }
    if divided:
        words = "; ".join(f"{who} {layers}" for who, layers in divided.items())
        said.append(f"Layers of the stages, first to last: {words}.")
    return " ".join(said)


def _who(record: dict[str, Any]) -> str:
    return "this engine" if record["by"] == OURS else f"{record['by']} {record['version']}"


def _peer(record: dict[str, Any]) -> str:
    """Who trained, and what a peer's weights are where the settings say so."""
    weights = record.get("settings", {}).get("training", {}).get("dtype")
    return _who(record) + (f", {weights} weights" if weights else "")


def _rates(records: list[dict[str, Any]], by: str) -> list[float]:
    return [record["tokens_per_s_per_gpu"] for record in records if record["by"] == by]


def parts(cell: str) -> tuple[str, str, str, str]:
    """Model, layers, degrees and options of a cell of the benchmark; ValueError for others."""
    found = _ID.fullmatch(cell)
    if found is None:
        raise ValueError(f"{cell} is no cell of the benchmark")
    return found["model"], found["layers"], found["degrees"], found["options"]
