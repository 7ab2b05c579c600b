"""Explains mistakes in configuration files: the key, what pydantic expected there, what it found,
the line, and a similar name that is valid.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from workflow_lib.config.models import ModelSpec
from workflow_lib.config.platforms import Platform
from workflow_lib.records import bounds
from workflow_lib.records.reading import shown

Location = tuple[str | int, ...]

#: names that only a suffix tells from a wrong one: with more of them, valid names are listed
_RELATED = 4


def in_words(error: ValidationError, kind: type[BaseModel], plain: Any) -> Iterator[str]:
    """Each mistake in ``plain`` as a line ``key: what is wrong (line 7)``, one for each key."""
    grouped: dict[Location, list[Any]] = {}
    for problem in error.errors():
        grouped.setdefault(_location(problem, plain)[0], []).append(problem)
    for location, errors in grouped.items():
        # If a value may be a scalar or a list, pydantic tells both errors. The list's is deeper.
        if not any(other[:-1][: len(location)] == location for other in grouped if other):
            line = _location(errors[0], plain)[1]
            yield _in_words(kind, location, errors) + (f" (line {line})" if line else "")


def _location(error: Mapping[str, Any], plain: Any) -> tuple[Location, int | None]:
    """Where in the file an error is, and the line of the innermost key that leads there. It leaves
    out what pydantic alone puts into a location: the branches of a union.
    """
    location, line = [], None
    for part in error["loc"]:
        is_list = isinstance(part, int) and isinstance(plain, (list, tuple))
        if part < len(plain) if is_list else isinstance(plain, dict) and part in plain:
            location.append(part)
            line = getattr(plain, "lines", {}).get(part, line)
            plain = plain[part]
    return (*location, *(error["loc"][-1:] if error["type"] == "missing" else ())), line


def _in_words(kind: type[BaseModel], location: Location, errors: list[Any]) -> str:
    key = ".".join(str(part)[: bounds.VALUE_LETTERS.most] for part in location)
    # An error about a value of the right type says more than an error about its type.
    errors = [error for error in errors if not error["type"].endswith("_type")] or errors
    message = " or ".join(dict.fromkeys(error["msg"] for error in errors))
    message = message.replace("or Input should be", "or").replace("Input should be", "expected")
    message = message.replace("valid tuple", "list").replace("Tuple", "List")
    match errors[0]["type"]:
        case "extra_forbidden":
            message = f"unknown key; {_remedy(kind, location)}"
        case "value_error":
            message = message.replace("Value error, ", "")
        case name if name != "missing":
            message = f"{message}, not {in_yaml(errors[0]['input'])}"
            if key.endswith("_min") and ":" in str(errors[0]["input"]):
                message += "; a day is 1440 minutes"
    return f"{key}: {message}" if key else message


def in_yaml(value: object) -> str:
    """A value for a message, as YAML writes it where that is another word than Python's."""
    if value is None or isinstance(value, bool):
        return "nothing" if value is None else str(value).lower()
    return shown(value)


def _remedy(kind: type[BaseModel], location: tuple[Any, ...]) -> str:
    """What to do about an unknown key: a place where it is valid, else a similar key."""
    keys = {path: path.rpartition(".")[2] for path in _paths(kind)}
    *place, name = (part for part in location if isinstance(part, str))
    here = ".".join(part for part in place if part in keys.values())
    if elsewhere := [path for path, key in keys.items() if key == name]:
        return f"its place is {elsewhere[0]!r}"
    for other, file in (("models", ModelSpec), ("platforms", Platform)):
        if name in file.model_fields:
            return f"its place is a file of config/{other}"
    return nearest(name, [key for path, key in keys.items() if path.rpartition(".")[0] == here])


def _paths(kind: Any, before: str = "") -> Iterator[str]:
    """The keys of a kind of file, those of its own first, each with the keys that lead to it."""
    fields = kind.model_fields
    yield from (before + name for name in fields)
    for name in fields:
        for inner in _models(fields[name].annotation):
            yield from _paths(inner, f"{before}{name}.")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _models(argument)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A remedy for a wrong name: a similar valid name, else those that only a suffix tells from it,
    else a list of valid ones.

    Names with different numbers are not similar: h100 is not suggested for h1000. The suffix is
    that of a view: the sweep "lora" has the views "lora-h200" and "lora-h100".
    """
    names = sorted(valid)
    swapped = [other for other in names if sorted(other) == sorted(name)]
    for close in (*swapped, *difflib.get_close_matches(name, names, n=3, cutoff=0.75)):
        numbers = re.findall(r"\d+", name), re.findall(r"\d+", close)
        if numbers[0] == numbers[1] or not all(numbers):
            return f"did you mean {close!r}?"
    related = [other for other in names if f"{other}-".startswith(f"{name}-")]
    related = related or [other for other in names if name.startswith(f"{other}-")]
    if 0 < len(related) <= _RELATED:
        return f"did you mean {' or '.join(map(repr, related))}?"
    return listed(related or names)


def listed(valid: Iterable[str]) -> str:
    """A remedy for a wrong name: a list of up to 50 valid ones."""
    names = sorted(valid)
    more = f" and {len(names) - 50} more" if len(names) > 50 else ""
    return f"valid: {', '.join(names[:50]) or 'none'}{more}"
