"""The pages of what ``research/engine_on_gpus.py`` and ``parts_on_gpus.py`` measured: one of each
file in evidence/engine.

A line of such a file is a cell, or a part timed alone: what the benchmark's ``--output`` appends.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.measuring.pairs import in_rounds, ratio_in_words
from research.pages import findings, part_times
from research.pages.tables import RATIOS, document, head, link, of_tokens, table

CHECKOUT = Path(__file__).parents[2]
RECORDS = CHECKOUT / "evidence" / "engine"

_NOTE = "<!-- Made by `python -m docs.evidence --write` from evidence/engine/. -->"
_PEAK = "peak GB, measured / estimated"
#: platform/model-NNl/degrees_options_0
_ID = re.compile(r"[^/]+/(?P<model>.+)-(?P<layers>\d+)l/(?P<degrees>[^_]+)_(?P<options>.+)_0")


def files() -> dict[Path, str]:
    """Path and text of each page."""
    return {
        findings.DIRECTORY / f"engine-{path.stem}.md": _page(path)
        for path in sorted(RECORDS.glob("*.jsonl"))
    }


def _page(path: Path) -> str:
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if "part" in records[0]:
        return part_times.page(_NOTE, path, records)
    if records[0].get("ranks_per_gpu", 1) > 1:
        return shared_page(path.stem, records)
    if "by" in records[0]:
        return overlap_page(path.stem, records)
    return page(path.stem, records)


def page(name: str, records: list[dict[str, Any]]) -> str:
    """The page of one file: a table for each model, with ratios to its first row."""
    first = records[0]
    blocks: list[str | list[str]] = [
        _NOTE,
        head("How fast is the engine in each layout", first),
        f"`research/engine_on_gpus.py`, torch {first['torch']}. Each row is one launch on one "
        "host: a mean over a few steps on synthetic tokens. There are no repeats, so no interval "
        "shows which differences are chance. MFU counts causal attention "
        "([Training](../explanation/training.md)). Memory is the most that torch allocated on the "
        "fullest GPU, beside the estimate of the version that ran. The raw data are "
        f"{link(name)}. {of_tokens(records)}",
    ]
    heads = ("layout", "options", "tokens/s/GPU", "to the first row", "MFU, %")
    for (model, layers), group in groupby(records, key=lambda each: parts(each["cell"])[:2]):
        rows, base = [], None
        for cell in group:
            *_, degrees, options = parts(cell["cell"])
            speed = cell["tokens_per_s_per_gpu"]
            base = base or speed
            speeds = (f"{speed:,.0f}", f"{speed / base:.3f}", f"{100 * cell['mfu_causal']:.1f}")
            rest = (_memory(cell), f"{cell['start_up_s']:.0f}")
            rows.append((f"`{degrees}`", f"`{options}`", *speeds, *rest))
        blocks += [f"## {model}, {layers} layers"]
        blocks += [table((*heads, _PEAK, "first step after, s"), rows)]
    return document(*blocks)


def _memory(record: dict[str, Any]) -> str:
    return f"{record['peak_gb']:.1f} / {record['estimate_gb']:.1f}"


def shared_page(name: str, records: list[dict[str, Any]]) -> str:
    """The page of layouts whose ranks shared GPUs: their losses and memory, which show that they
    train there. Speeds were not recorded.
    """
    first = records[0]
    ranks = first["ranks_per_gpu"]
    rows = []
    for record in records:
        model, layers, degrees, options = parts(record["cell"])
        stages = ", ".join(map(str, record["stage_layers"]))
        loss = f"{record['loss']:.5f}"
        what = (f"{model}, {layers} layers", f"`{degrees}`", f"`{options}`")
        rows.append((*what, stages, loss, _memory(record)))
    heads = ("model", "layout", "options", "layers of the stages", "loss, nats", _PEAK)
    return document(
        _NOTE,
        head(f"What loss and memory have layouts of {first['gpus'] * ranks} ranks", first),
        f"`research/engine_on_gpus.py --ranks-per-gpu {ranks}`, torch {first['torch']}. {ranks} "
        "ranks share each GPU, so no speeds were recorded. All layouts of a model train the same "
        "weights on the same tokens, in bf16: their losses after the last step should differ by "
        "rounding alone. Memory is the most that torch allocated for one rank, beside the plan's "
        f"estimate. The raw data are {link(name)}. {of_tokens(records)}",
        table(heads, rows),
    )


def overlap_page(name: str, records: list[dict[str, Any]]) -> str:
    """The page of cells with and without overlap, each launched several times in turn."""
    first = records[0]
    launches: dict[tuple[str, ...], dict[str, dict[bool, dict[str, Any]]]] = {}
    for record, number in zip(records, _rounds(name, records), strict=True):
        *layout, options = parts(record["cell"])
        sides = launches.setdefault((*layout, options.replace("-overlap", "")), {})
        sides.setdefault(number, {})["-overlap" in options] = record
    rows, alone = [], list[str]()
    for key, of_rounds in launches.items():
        pairs = [(sides[False], sides[True]) for sides in of_rounds.values() if len(sides) == 2]
        if pairs:
            off, on = zip(*pairs, strict=True)
            rows.append(_overlap_row(key, off, on))
        for sides in of_rounds.values():
            alone += [f"`{side['cell']}`" for side in sides.values() if len(sides) == 1]
    said = "Left out are launches whose round lacks the other one of the pair"
    heads = (
        *("model, layers", "layout and options without overlap", "launches, without + with"),
        *("tokens/s/GPU, without → with", "with to without", "peak GB"),
        *("kernels of communication, % of the step", "of them beside compute, %"),
        "exposed, % of the step",
    )
    return document(
        _NOTE,
        head("What does overlap gain experts", first),
        f"`research/engine_on_gpus.py --alternations --trace`, torch {first['torch']}. Each cell "
        "was launched in turn on one host, each round in the reverse order of the one before. A "
        f"launch's speed is the median of {first['steps']} steps on synthetic tokens. {RATIOS} One "
        "more step of each launch was profiled; a collective is exposed while its kernels run and "
        "no compute kernel does, and that time is given as a share of the step, a mean over "
        f"launches. The raw data are {link(name)}. {of_tokens(records)}",
        table(heads, rows),
        *([f"{said}: {', '.join(alone)}."] if alone else []),
    )


def _rounds(name: str, records: list[dict[str, Any]]) -> list[str]:
    """In which round each launch was, which has every cell once: as it says, or, in records of
    earlier versions, by its place among whole rounds. Raises ValueError if neither tells.
    """
    said = [record.get("round") for record in records]
    cells = [record["cell"] for record in records]
    if None in said:
        turn = list(dict.fromkeys(cells))
        if cells != in_rounds(turn, len(cells) // len(turn)):
            raise ValueError(
                f"{RECORDS / name}.jsonl: its launches are no whole rounds, and some do not say of "
                "which round they are; launch them again"
            )
        said = [str(place // len(turn)) for place in range(len(cells))]
    if len(set(zip(cells, said, strict=True))) < len(cells):
        raise ValueError(f"{RECORDS / name}.jsonl: a cell was launched twice in a round")
    return [str(each) for each in said]


def _overlap_row(
    key: tuple[str, ...], off: Sequence[dict[str, Any]], on: Sequence[dict[str, Any]]
) -> list[str]:
    """A line of pairs of launches, without and with overlap."""
    model, layers, degrees, options = key
    names = sorted({name for each in (*off, *on) for name in each["exposed"]})

    def both(form: str, value: Callable[[dict[str, Any]], float]) -> str:
        return " → ".join(format(fmean(map(value, launches)), form) for launches in (off, on))

    exposed = (
        f"{name} {both('.1f', lambda each, name=name: 100 * each['exposed'].get(name, 0.0))}"
        for name in names
    )
    rates = ([launch["tokens_per_s_per_gpu"] for launch in launches] for launches in (on, off))
    return [
        f"{model}, {layers}",
        f"`{degrees}`, `{options}`",
        f"{len(off)} + {len(on)}",
        both(",.0f", lambda each: each["tokens_per_s_per_gpu"]),
        ratio_in_words(*rates),
        both(".1f", lambda each: each["peak_gb"]),
        both(".1f", lambda each: 100 * each["communication_s"] / each["step_s"]),
        both(".0f", lambda each: 100 * each["overlapped"]),
        "; ".join(exposed),
    ]


def parts(cell: str) -> tuple[str, str, str, str]:
    """Model, layers, degrees and options of a cell of the benchmark; ValueError for others."""
    found = _ID.fullmatch(cell)
    if found is None:
        raise ValueError(f"{cell} is no cell of the benchmark")
    return found["model"], found["layers"], found["degrees"], found["options"]
