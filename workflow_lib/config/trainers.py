"""``config/trainers``: programs of others that train the cells of a sweep."""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from workflow_lib.config.fields import PathText, Strict, Text
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training


def _plain_placeholders(word: str) -> str:
    """The word, unless its braces do not make placeholders. Raises ValueError."""
    try:
        for _, name, form, conversion in string.Formatter().parse(word):
            if name is not None and (form or conversion or not name.isidentifier()):
                raise ValueError(f"{{{name}}} is no name")
    except ValueError as error:
        raise ValueError(
            f"{word!r}: {error}; write placeholders as {{tp}}, and braces themselves twice"
        ) from None
    return word


Word = Annotated[Text, AfterValidator(_plain_placeholders)]
Value = str | int | float | bool


#: axis → the kind of its values
_KINDS: Mapping[str, Any] = {
    name: kind
    for record in (Model, Degrees, Training)
    for name, kind in get_type_hints(record).items()
}


def _possible(accepted: Mapping[str, tuple[Value, ...]]) -> Mapping[str, tuple[Value, ...]]:
    """The values, unless a cell can never have one. Raises ValueError. Axes that no cell has are
    found where cells are planned."""
    for axis in accepted.keys() & _KINDS.keys():
        kind = TypeAdapter(_KINDS[axis])
        for value in accepted[axis]:
            try:
                kind.validate_python(value, strict=True)
            except ValidationError as error:
                (first, *_) = error.errors(include_url=False)
                raise ValueError(f"{axis}: no cell has {value!r}: {first['msg']}") from None
    return accepted


Accepted = Annotated[
    Mapping[str, Annotated[tuple[Value, ...], Field(strict=False, min_length=1)]],
    AfterValidator(_possible),
]


def _one_or_more(given: Any) -> Any:
    return [given] if isinstance(given, Mapping) else given


def _below(file: str) -> str:
    """The path, unless it leads elsewhere. Raises ValueError."""
    path = PurePosixPath(file)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{file!r} leads out of the directory that has config/; copy it into that")
    return file


class TrainerSpec(Strict):
    """``config/trainers/<name>.yaml``: a program that trains, and what it can be told."""

    description: Text
    """One line on the trainer."""
    command: tuple[Word, ...] = Field(strict=False, min_length=1)
    """The words of each rank's command, without a shell. {python} is the platform's Python; other
    placeholders are a cell's, as {tp} or {micro_batch_size}. Ranks are started as by torchrun."""
    steps: Literal["hook", "calls"] = "hook"
    """How steps are seen: by torch's optimizer hook, without a change of the program, or by its
    calls of triptych_steps. The hook cannot see when the first step begins, so that {steps} is one
    more with it."""
    accepts: Annotated[
        tuple[Accepted, ...],
        BeforeValidator(_one_or_more, json_schema_input_type=Accepted | tuple[Accepted, ...]),
        Field(strict=False),
    ] = ()
    """Axis → the values that the program can have, as `precision: [bf16]`. Of an axis that is
    neither here nor in the command it has the usual value. A cell with another value is refused.
    A list of such mappings accepts what one of them does."""
    files: tuple[Annotated[PathText, AfterValidator(_below)], ...] = Field(default=(), strict=False)
    """Files of the program, from the directory that has config/, the repository's. If one changes,
    cells are others. Archives hold them."""
    differs: Text = "not told"
    """What differs from this repository's own trainer: data, initial weights, precision."""
