"""``config/data``: the tokens to train on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from workflow_lib.config.fields import PathText, PositiveInt, Strict, Text


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
