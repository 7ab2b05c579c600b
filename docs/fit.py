"""Keeps the fit to this workflow's runs: ``python -m docs.fit`` writes it anew."""

from __future__ import annotations

from pathlib import Path

from workflow_lib.projection import shipped_fit


def files() -> dict[Path, str]:
    """The file, and what it has to hold."""
    return {shipped_fit.SHIPPED: shipped_fit.text()}


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8", newline="")
