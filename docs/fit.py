"""Keeps the fit to this workflow's runs: ``python -m docs.fit`` writes it anew."""

from __future__ import annotations

import json
from pathlib import Path

from workflow_lib.projection import shipped_fit


def files() -> dict[Path, str]:
    """The file, and what it has to hold: what it does if that is the same fit, whatever the last
    digits that this processor gives."""
    kept, new = shipped_fit.SHIPPED.read_text(encoding="utf-8"), shipped_fit.text()
    same = shipped_fit.is_same(json.loads(kept), json.loads(new))
    return {shipped_fit.SHIPPED: kept if same else new}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8", newline="")
