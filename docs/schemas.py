"""A JSON Schema for each kind of file under ``config/``, from the models that check them.

Editors with YAML's language server complete and check by them: each file names its schema in its
first line. What needs more than one key, or more than one file, only loading the study checks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_lib import config

CONFIG = Path(__file__).parents[1] / "config"
DIRECTORY = CONFIG / "schemas"

#: the files of a kind, and the model that checks them
KINDS: Mapping[str, tuple[str, type[config.Strict]]] = {
    "config": ("config.yaml", config.Invocation),
    "claims": ("claims.yaml", config.Ledger),
    "meters": ("meters.yaml", config.Meters),
    "platform": ("platforms/*.yaml", config.Platform),
    "model": ("models/*.yaml", config.ModelSpec),
    "data": ("data/*.yaml", config.DataSpec),
    "trainer": ("trainers/*.yaml", config.TrainerSpec),
    "sweep": ("sweeps/*.yaml", config.SweepSpec),
}


def pages() -> dict[Path, str]:
    """Every schema: its path and its text."""
    return {DIRECTORY / f"{name}.json": _text(name, model) for name, (_, model) in KINDS.items()}


def _text(name: str, model: type[config.Strict]) -> str:
    schema = {
        # The draft that editors know best.
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": "Made by `python -m docs.generate`; edit workflow_lib/config instead.",
        **_plain(model.model_json_schema()),
        "title": f"Triptych: {name}",
    }
    return json.dumps(schema, ensure_ascii=False, indent=1) + "\n"


def _plain(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of names, and without line breaks."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "description" and isinstance(value, str):
            value = " ".join(value.split()).replace("``", "")
        plain[key] = _plain(value)
    return plain
