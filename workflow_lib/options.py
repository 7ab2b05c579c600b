"""Options that several commands have: where files of the configuration and results are."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``, the directory of the study's configuration."""
    parser.add_argument(
        "--config", type=Path, default=Path("config"), help="the configuration (default: config)"
    )


def add_results(parser: argparse.ArgumentParser) -> None:
    """Add ``--results``, the directory that holds cells/ and sweeps/."""
    parser.add_argument(
        "--results", type=Path, default=Path("results"), help="where results are (default: results)"
    )


def add_meters(parser: argparse.ArgumentParser) -> None:
    """Add ``--meters``, the file of what meters showed of sensors of power."""
    parser.add_argument(
        "--meters",
        type=Path,
        help="what meters showed of GPUs' sensors of power (default: config/meters.yaml, if there)",
    )
