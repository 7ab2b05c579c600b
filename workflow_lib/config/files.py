"""The files with few keys: ``config/config.yaml``, ``config/data`` and ``config/meters.yaml``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from workflow_lib.config.fields import PathText, PositiveInt, Strict, Text
from workflow_lib.power_errors import OFFSET_W, SensorError


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


class DataSpec(Strict):
    """``config/data/<name>.yaml``: the tokens to train on."""

    description: Text
    """One line on the data."""
    kind: Literal["text", "synthetic"]
    """Tokenized text files, or random tokens from the cell's seed."""
    tokenizer: PathText | None = None
    """bytes, or the path of a Hugging Face tokenizer.json."""
    sources: tuple[PathText, ...] = Field(default=(), strict=False)
    """Text files in UTF-8, globs, or python-standard-library: the modules of Python's standard
    library."""
    maximum_tokens: PositiveInt | None = None
    """Stop after this many tokens."""

    @model_validator(mode="after")
    def _agrees(self) -> DataSpec:
        if self.kind == "text" and not (self.tokenizer and self.sources):
            raise ValueError("data of kind text need a tokenizer and at least one file in sources")
        if self.kind == "synthetic" and (self.tokenizer or self.sources or self.maximum_tokens):
            raise ValueError("data of kind synthetic take no tokenizer, sources or maximum_tokens")
        return self


class Meter(Strict):
    """What a meter beside one GPU showed."""

    gain: Annotated[float, Field(gt=-0.5, lt=0.5)]
    """By how much the sensor's readings grow faster than the meter's, as a share of these: −0.046
    if 100 W more by the meter are 95.4 W more by the sensor."""
    uncertainty: Annotated[float, Field(ge=0, lt=0.5)]
    """By how much this gain may be wrong, with the meter's own error."""
    offset_w: Annotated[float, Field(ge=0, le=1000)] = OFFSET_W
    """How far the sensor may be off at 0 W, either way, once the gain is taken off."""
    source: Text
    """Which meter, when, and by whom."""

    @property
    def error(self) -> SensorError:
        """As bounds."""
        return SensorError(
            self.gain - self.uncertainty, self.gain + self.uncertainty, self.offset_w
        )


class Meters(Strict):
    """What meters of the site showed. Of a GPU that is not here, what is published is assumed: a
    gain within ±10 % and an offset within ±12.5 W."""

    gpus: Mapping[Text, Meter] = Field(default={})
    """UUID of a GPU, as its driver gives it → what a meter beside it showed."""
