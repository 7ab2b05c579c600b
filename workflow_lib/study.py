"""Reads everything under ``config/`` and holds it together.

Every mistake in it is a ConfigError that names the file, the key, what was expected and, where a
name is wrong, the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from workflow_lib import formulas, records
from workflow_lib.config import (
    DataSpec,
    Ledger,
    ModelSpec,
    Platform,
    Published,
    Strict,
    SweepSpec,
    values,
)
from workflow_lib.records import RecordError, bounds, shown
from workflow_lib.safety import printable
from workflow_lib.yaml_files import YamlFileError, read_yaml

#: what a file's name, and so a directory under results/, may look like
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


class ConfigError(ValueError):
    """A configuration file is wrong. The message says which, where and what to write instead."""

    def __init__(self, message: str) -> None:
        """It may quote keys and names of files, which can hold anything."""
        super().__init__(printable(message, bounds.MESSAGE_LETTERS.most))


#: whether a sweep is wanted, by its name and what its file says; null where that cannot be read
Wanted = Callable[[str, SweepSpec | None], bool]


@dataclass(frozen=True)
class Study:
    """Everything under ``config/``, by name."""

    directory: Path
    models: Mapping[str, ModelSpec]
    platforms: Mapping[str, Platform]
    data: Mapping[str, DataSpec]
    sweeps: Mapping[str, SweepSpec]
    #: what is wrong with files that no wanted sweep needs
    left_out: tuple[str, ...] = ()


def all_sweeps(name: str, spec: SweepSpec | None) -> bool:
    """Every sweep is wanted, and so every file."""
    return True


def of_view(*views: str) -> Wanted:
    """The sweeps that may have made these views: ``<sweep>``, or ``<sweep>-<platform>``."""
    return lambda name, _: any(view == name or view.startswith(f"{name}-") for view in views)


def load_study(directory: Path, wanted: Wanted = all_sweeps) -> Study:
    """Read and check the files under ``directory``, references between them included.

    Unless all sweeps are wanted, a file with a mistake that no wanted one needs is left out. Raises
    ConfigError for any other.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; expected the study's configuration")
    broken: dict[Path, ConfigError] = {}
    study = Study(
        directory=directory,
        models=_load_all(directory / "models", ModelSpec, broken),
        platforms=_load_all(directory / "platforms", Platform, broken),
        data=_load_all(directory / "data", DataSpec, broken),
        sweeps=_load_all(directory / "sweeps", SweepSpec, broken),
    )
    if wanted is all_sweeps and broken:
        raise next(iter(broken.values()))
    for path, error in broken.items():
        if path.parent.name == "sweeps" and wanted(path.stem, None):
            raise error
    sweeps = dict(study.sweeps)
    for name, sweep in study.sweeps.items():
        path = directory / "sweeps" / f"{name}.yaml"
        try:
            for needed in _files_of(sweep, directory):
                if needed in broken:
                    raise broken[needed]
            _check_references(path, sweep, study)
        except ConfigError as error:
            if wanted(name, sweep):
                raise
            del sweeps[name]
            broken.setdefault(path, error)
    left_out = tuple(dict.fromkeys(str(error) for error in broken.values()))
    return dataclasses.replace(study, sweeps=sweeps, left_out=left_out)


def _files_of(sweep: SweepSpec, directory: Path) -> list[Path]:
    """The files that a sweep's file names."""
    models = [name for entry in sweep.matrix for name in values(entry.models)]
    named = {"models": models, "platforms": sweep.platforms, "data": [sweep.data]}
    return [directory / kind / f"{name}.yaml" for kind, names in named.items() for name in names]


def load_ledger(path: Path) -> Ledger:
    """Read and check a file of claims, as ``config/claims.yaml``. Raises ConfigError."""
    return _load(path, Ledger)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A remedy for a wrong name: the nearest valid one, else some of them."""
    known = sorted(valid)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return f"valid: {', '.join(known[:20]) or 'none'}{more}"


Item = TypeVar("Item")


def lookup(kind: str, name: str, known: Mapping[str, Item]) -> Item:
    """``known[name]``, or a ConfigError that says what there is."""
    if name not in known:
        raise ConfigError(f"no {kind} is called {name!r}; {nearest(name, known)}")
    return known[name]


Spec = TypeVar("Spec", bound=Strict)


def _load_all(
    directory: Path, kind: type[Spec], broken: dict[Path, ConfigError]
) -> dict[str, Spec]:
    """The files of a directory by their names; those with a mistake are put into ``broken``."""
    specs = {}
    for path in sorted(directory.glob("*.yaml")):
        try:
            specs[path.stem] = _load_named(path, kind)
        except ConfigError as error:
            broken[path] = error
    return specs


def _load_named(path: Path, kind: type[Spec]) -> Spec:
    if not NAME.fullmatch(path.stem):
        raise ConfigError(
            f"{path}: {path.stem!r} cannot be a name; it names directories too, so use "
            "letters, digits, dots and hyphens"
        )
    spec = _load(path, kind)
    if isinstance(spec, ModelSpec):
        _check_published(path, spec.record(path.stem), spec.published)
    return spec


def _load(path: Path, kind: type[Spec]) -> Spec:
    try:
        plain = read_yaml(path)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except YamlFileError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(plain).__name__}")
    return checked(str(path), kind, plain)


def checked(source: str, kind: type[Spec], plain: Any) -> Spec:
    """Plain data as a ``kind``. Raises ConfigError, which names the ``source`` and the key."""
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        errors = _most_specific([dict(each) for each in error.errors()])
        raise ConfigError("\n".join(_explain(source, kind, each) for each in errors)) from None


def _most_specific(errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One error a key: pydantic reports both readings of a value that may be one or a list."""
    for error in errors:
        # An unknown key is named whatever it looks like.
        parts = len(error["loc"]) - (error["type"] == "extra_forbidden")
        keys = (part for part in error["loc"][:parts] if not _is_type_tag(part))
        error["loc"] = (*keys, *error["loc"][parts:])
    locations = [error["loc"] for error in errors]
    kept: dict[tuple[str | int, ...], dict[str, Any]] = {}
    for error in errors:
        deeper = any(
            o != error["loc"] and o[: len(error["loc"])] == error["loc"] for o in locations
        )
        if not deeper:
            kept.setdefault(error["loc"], error)
    return list(kept.values())


def _explain(source: str, kind: type[Strict], error: dict[str, Any]) -> str:
    """One of pydantic's errors as ``file: key: what was wrong; what to do``."""
    location = error["loc"]
    key = ".".join(str(part)[: bounds.VALUE_LETTERS.most] for part in location) or "(whole file)"
    if error["type"] == "extra_forbidden":
        return f"{source}: {key}: unknown key; {nearest(str(location[-1]), _keys(kind, location))}"
    if error["type"] == "missing":
        return f"{source}: {key}: missing; this key is required"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{source}: {key}: {message}" if location else f"{source}: {message}"
    return f"{source}: {key}: {message}, not {shown(error['input'])}{_number_hint(error['input'])}"


def _number_hint(value: object) -> str:
    """YAML 1.1 reads 1e-4 and 1.0e30 as text, which puzzles everybody."""
    try:
        number = float(value) if isinstance(value, str) else None
    except ValueError:
        number = None
    return "" if number is None else "; YAML wants a point and a sign, as in 1.0e-4 or 1.0e+30"


def _is_type_tag(part: str | int) -> bool:
    """Whether pydantic, not the file, put this part into an error's location (a union's branch)."""
    tags = (
        "int",
        "str",
        "bool",
        "float",
        "constrained-int",
        "constrained-float",
        "constrained-str",
    )
    return isinstance(part, str) and bool(re.search(r"[\[(]", part) or part in tags)


def _keys(kind: type[Strict], location: tuple[str | int, ...]) -> list[str]:
    """The valid keys at the place of an error."""
    fields: Any = kind
    for part in location[:-1]:
        if isinstance(part, str):
            annotation = fields.model_fields[part].annotation
            fields = next(a for a in _flatten(annotation) if hasattr(a, "model_fields"))
    return list(fields.model_fields)


def _flatten(annotation: Any) -> list[Any]:
    arguments = getattr(annotation, "__args__", ())
    return [annotation] + [leaf for argument in arguments for leaf in _flatten(argument)]


def _check_published(path: Path, model: records.Model, published: Published | None) -> None:
    count = formulas.parameters(model).total
    if count > bounds.PARAMETERS.most:
        raise ConfigError(
            f"{path}: the dimensions make {count:.5g} parameters, more than "
            f"{bounds.PARAMETERS.most:.0g}"
        )
    if published is None:
        return
    if abs(count / published.parameters - 1) > 0.001:
        raise ConfigError(
            f"{path}: the dimensions make {count:.5g} parameters, but published.parameters is "
            f"{published.parameters:.5g}; they must agree within 0.1 %"
        )


def _check_references(path: Path, sweep: SweepSpec, study: Study) -> None:
    def check(key: str, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
        for name in names:
            if name not in set(known):
                raise ConfigError(
                    f"{path}: {key}: no {kind} is called {name!r}; {nearest(name, known)}"
                )

    check("platforms", "platform", sweep.platforms, study.platforms)
    for name in sweep.platforms:
        if sweep.protocol.cool_down and study.platforms[name].idle_temperature_c is None:
            raise ConfigError(
                f"{path}: protocol.cool_down: platform {name} has no idle_temperature_c to cool "
                f"down to; set it in {study.directory}/platforms/{name}.yaml to what its GPUs show "
                "after long idling, or leave cool_down out"
            )
    check("data", "data", [sweep.data], study.data)
    for number, entry in enumerate(sweep.matrix):
        check(f"matrix.{number}.models", "model", values(entry.models), study.models)
        if entry.platforms is not None:
            check(
                f"matrix.{number}.platforms",
                "platform of this sweep",
                values(entry.platforms),
                sweep.platforms,
            )
    for number, exclusion in enumerate(sweep.exclude):
        if exclusion.model is not None:
            check(f"exclude.{number}.model", "model", values(exclusion.model), study.models)
        if exclusion.platform is not None:
            check(
                f"exclude.{number}.platform",
                "platform of this sweep",
                values(exclusion.platform),
                sweep.platforms,
            )
