"""``config/config.yaml``: the settings of an invocation of the workflow."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from workflow_lib.config.fields import PathText, Strict


def _fit_for_rules(path: str) -> str:
    if path.startswith("-"):
        raise ValueError(f"{path!r} begins with a hyphen and would be read as an option; use ./…")
    if "{" in path or "}" in path:
        raise ValueError(f"{path!r} holds a brace, with which Snakemake marks what is to be filled")
    return path


#: a path that rules use in their inputs, outputs and commands
Directory = Annotated[PathText, AfterValidator(_fit_for_rules)]


class Invocation(Strict):
    """``config/config.yaml``. A profile and ``--config`` override its values."""

    config_directory: Directory
    """The study's configuration: its models, platforms, data and sweeps."""
    results_directory: Directory
    """The directory that results are written to."""
    sweeps: tuple[str, ...] = Field(min_length=1, strict=False)
    """Names of sweeps; those that are for the chosen platform are run."""
    platform: str | None = None
    """Name of the platform; a profile gives it."""
    order_seed: int = 0
    """Seed of the random order in which runs are submitted, block by block."""
