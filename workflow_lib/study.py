"""Reads and checks all files under ``config/``.

Every mistake is a ConfigError that names the file, the key, what was expected and, if a name is
wrong, the nearest valid one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from pydantic import ValidationError

from workflow_lib import formulas, records
from workflow_lib.config import (
    DataSpec,
    Ledger,
    Meters,
    ModelSpec,
    Platform,
    Published,
    Strict,
    SweepSpec,
    mistakes,
    values,
)
from workflow_lib.power_errors import SensorError
from workflow_lib.records import RecordError, bounds
from workflow_lib.safety import printable
from workflow_lib.yaml_files import YamlFileError, read_yaml

#: valid names of files; they also become names of directories under results/
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


class ConfigError(ValueError):
    """A configuration file is wrong. The message says which, where and what to write instead."""

    def __init__(self, message: str) -> None:
        """``message`` may quote keys and file names, so characters that cannot be printed are
        escaped.
        """
        super().__init__(printable(message, bounds.MESSAGE_LETTERS.most))


Item = TypeVar("Item")


class Files(dict[str, Item]):
    """Name → what a file says, of the files without a mistake. Whoever looks up the name of a file
    with one gets its ConfigError.
    """

    def __init__(self, files: Mapping[str, Item] = MappingProxyType({})) -> None:
        super().__init__(files)
        #: name → the mistake in its file
        self.bad: dict[str, ConfigError] = {}

    def __missing__(self, name: str) -> Item:
        raise self.bad.get(name, KeyError(name))


@dataclass(frozen=True)
class Study:
    """The files under ``config/``, by their names."""

    directory: Path
    models: Files[ModelSpec]
    platforms: Files[Platform]
    data: Files[DataSpec]
    sweeps: Files[SweepSpec]

    @property
    def mistakes(self) -> tuple[ConfigError, ...]:
        """The mistakes in all files, each of which stops what needs that file."""
        kinds = (self.models, self.platforms, self.data, self.sweeps)
        return tuple(error for files in kinds for error in files.bad.values())

    def platforms_of(self, spec: SweepSpec) -> tuple[str, ...]:
        """The names of a sweep's platforms, those whose files have a mistake among them."""
        every = (*self.platforms, *self.platforms.bad)
        return every if spec.is_for_all else spec.platforms

    def files_of(self, sweep: str, platform: str) -> tuple[Path, ...]:
        """A sweep's file and the files that it refers to, as paths below ``directory``; of a sweep
        for all platforms only the file of ``platform``.
        """
        spec = self.sweeps[sweep]
        models = [*(entry.models for entry in spec.matrix), *(each.model for each in spec.exclude)]
        named = {
            "data": set(spec.all_data),
            "models": {name for model in models if model is not None for name in values(model)},
            "platforms": {platform} if spec.is_for_all else {*spec.platforms},
            "sweeps": {sweep},
        }
        return tuple(
            Path(kind, f"{name}.yaml") for kind, names in named.items() for name in sorted(names)
        )


def load_study(directory: Path) -> Study:
    """Read the files under ``directory``. A mistake in one of them is raised where that file is
    looked up. Raises ConfigError if there is no such directory.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"{directory}: no such directory; expected the study's configuration: change to the "
            "clone, or name its config with --config"
        )
    return Study(
        directory=directory,
        models=_load_all(directory / "models", ModelSpec),
        platforms=_load_all(directory / "platforms", Platform),
        data=_load_all(directory / "data", DataSpec),
        sweeps=_load_all(directory / "sweeps", SweepSpec),
    )


def load_ledger(path: Path) -> Ledger:
    """Read and check a file of claims, such as ``config/claims.yaml``. Raises ConfigError."""
    return _load(path, Ledger)


def load_meters(path: Path | None) -> dict[str, SensorError]:
    """Read and check a file of meters: UUID of a GPU → the errors of its sensor. If none is named,
    it is ``config/meters.yaml``, which may be missing. Raises ConfigError."""
    named = path or Path("config", "meters.yaml")
    if path is None and not named.is_file():
        return {}
    return {gpu: meter.error for gpu, meter in _load(named, Meters).gpus.items()}


def remedy(kind: str, name: str, known: Iterable[str]) -> str:
    """What to do about an unknown name. For a platform it lists the valid names, because a similar
    name is another platform.
    """
    return mistakes.listed(known) if kind.startswith("platform") else mistakes.nearest(name, known)


def lookup(kind: str, name: str, known: Mapping[str, Item]) -> Item:
    """``known[name]``. Raises ConfigError: the mistake in the file of this name; or one that lists
    valid names or the nearest one.
    """
    try:
        return known[name]
    except KeyError:
        raise ConfigError(f"no {kind} is called {name!r}; {remedy(kind, name, known)}") from None


Spec = TypeVar("Spec", bound=Strict)


def _load_all(directory: Path, kind: type[Spec]) -> Files[Spec]:
    specs: Files[Spec] = Files()
    for path in sorted(directory.glob("*.yml")):
        specs.bad[path.stem] = ConfigError(
            f"{path}: only *.yaml is read; rename it to {path.stem}.yaml"
        )
    for path in sorted(directory.glob("*.yaml")):
        try:
            specs[path.stem] = _load_named(path, kind)
        except ConfigError as error:
            specs.bad[path.stem] = error
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
    return checked(str(path), kind, plain_of(path))


def plain_of(path: Path) -> dict[Any, Any]:
    """The keys and values of a configuration file, not yet checked. Raises ConfigError."""
    try:
        plain = read_yaml(path)
    except RecordError as error:
        raise ConfigError(str(error)) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except YamlFileError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: expected keys and values, found {mistakes.in_yaml(plain)}")
    return plain


def checked(source: str, kind: type[Spec], plain: Any) -> Spec:
    """Check plain data against the model ``kind``. Raises ConfigError, which names ``source`` and
    the key.
    """
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        told = mistakes.told(error, kind)
        raise ConfigError("\n".join(f"{source}: {each}" for each in told)) from None


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


def _check_idle_temperatures(place: str, platforms: Iterable[str], study: Study) -> None:
    """Raises ConfigError if GPUs are to cool down and nobody knows to what."""
    for name in platforms:
        platform = study.platforms.get(name)
        if platform is not None and platform.idle_temperature_c is None:
            raise ConfigError(
                f"{place}.cool_down: platform {name} has no idle_temperature_c to cool "
                f"down to; set it in {study.directory}/platforms/{name}.yaml to what its GPUs show "
                "after long idling, or leave cool_down out"
            )


def check_references(sweep: SweepSpec, study: Study) -> None:
    """Raise ConfigError, which names the key, if a sweep refers to a file that is not there."""

    def check(key: str, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
        there = {*known, *(known.bad if isinstance(known, Files) else ())}
        for name in names:
            if name not in there:
                raise ConfigError(
                    f"{key}: no {kind} is called {name!r}; {remedy(kind, name, known)}"
                )

    platforms = study.platforms_of(sweep)
    check("platforms", "platform", platforms, study.platforms)
    if sweep.protocol.cool_down:
        _check_idle_temperatures("protocol", platforms, study)
    check("data", "data", [sweep.data], study.data)
    for number, entry in enumerate(sweep.matrix):
        check(f"matrix.{number}.models", "model", values(entry.models), study.models)
        check(f"matrix.{number}.data", "data", sweep.data_of(entry), study.data)
        if entry.platforms is not None:
            check(
                f"matrix.{number}.platforms",
                "platform of this sweep",
                values(entry.platforms),
                platforms,
            )
        if entry.cool_down:
            where = platforms if entry.platforms is None else values(entry.platforms)
            _check_idle_temperatures(f"matrix.{number}", where, study)
    for number, exclusion in enumerate(sweep.exclude):
        if exclusion.data is not None:
            check(f"exclude.{number}.data", "data", values(exclusion.data), study.data)
        if exclusion.model is not None:
            check(f"exclude.{number}.model", "model", values(exclusion.model), study.models)
        # A sweep for all platforms may leave out one that is not there, as in an archive.
        if exclusion.platform is not None and not sweep.is_for_all:
            check(
                f"exclude.{number}.platform",
                "platform of this sweep",
                values(exclusion.platform),
                platforms,
            )
