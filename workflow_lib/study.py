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

from workflow_lib import formulas
from workflow_lib.config import (
    DataSpec,
    Ledger,
    Meters,
    ModelSpec,
    Platform,
    Strict,
    SweepSpec,
    TrainerSpec,
    mistakes,
    values,
)
from workflow_lib.power_errors import SensorError
from workflow_lib.records import bounds
from workflow_lib.records.reading import RecordError
from workflow_lib.records.training import NATIVE
from workflow_lib.safety import printable
from workflow_lib.yaml_files import YamlFileError, read_yaml

#: valid names of files; they also become names of directories under results/
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")


class ConfigError(ValueError):
    """A configuration file is wrong. The message says which, where and what to write instead."""

    def __init__(self, message: str) -> None:
        """``message`` may quote keys and file names, so characters that cannot be printed are
        escaped."""
        super().__init__(printable(message, bounds.MESSAGE_LETTERS.most))


Item = TypeVar("Item")


class Files(dict[str, Item]):
    """Name → what a file says, of the files without a mistake. Whoever looks up the name of a file
    with one gets its ConfigError."""

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
    trainers: Files[TrainerSpec]

    @property
    def mistakes(self) -> tuple[ConfigError, ...]:
        """The mistakes in all files, each of which stops what needs that file."""
        kinds = (self.models, self.platforms, self.data, self.sweeps, self.trainers)
        return tuple(error for files in kinds for error in files.bad.values())

    def platforms_of(self, spec: SweepSpec) -> tuple[str, ...]:
        """The names of a sweep's platforms, those whose files have a mistake among them."""
        every = (*self.platforms, *self.platforms.bad)
        return every if spec.is_for_all else spec.platforms

    def files_of(self, sweep: str, platform: str) -> tuple[Path, ...]:
        """A sweep's file and the files that it refers to, as paths below ``directory``; of a sweep
        for all platforms only the file of ``platform``."""
        spec = self.sweeps[sweep]
        models = [*(entry.models for entry in spec.matrix), *(out.model for out in spec.exclude)]
        named = {
            "data": set(spec.all_data),
            "models": {name for model in models if model is not None for name in values(model)},
            "platforms": {platform} if spec.is_for_all else {*spec.platforms},
            "sweeps": {sweep},
            "trainers": {*spec.other_trainers},
        }
        return tuple(
            Path(kind, f"{name}.yaml") for kind, names in named.items() for name in sorted(names)
        )


def load_study(directory: Path) -> Study:
    """Read the files under ``directory``. A mistake in one of them is raised where that file is
    looked up. Raises ConfigError if there is no such directory."""
    if not directory.is_dir():
        raise ConfigError(
            f"{directory}: no such directory; change to the clone, or name its config by --config"
        )
    return Study(
        directory,
        _load_all(directory / "models", ModelSpec),
        _load_all(directory / "platforms", Platform),
        _load_all(directory / "data", DataSpec),
        _load_all(directory / "sweeps", SweepSpec),
        _load_all(directory / "trainers", TrainerSpec),
    )


def load_ledger(path: Path) -> Ledger:
    """Read and check a file of claims, such as ``config/claims.yaml``. Raises ConfigError."""
    return checked(str(path), Ledger, plain_of(path))


def load_meters(path: Path | None) -> dict[str, SensorError]:
    """Read and check a file of meters: UUID of a GPU → the errors of its sensor. If none is named,
    it is ``config/meters.yaml``, which may be missing. Raises ConfigError."""
    named = path or Path("config", "meters.yaml")
    if path is None and not named.is_file():
        return {}
    meters = checked(str(named), Meters, plain_of(named))
    return {gpu: meter.error for gpu, meter in meters.gpus.items()}


def remedy(kind: str, name: str, known: Iterable[str]) -> str:
    """What to do about an unknown name. For a platform it lists the valid names, because a similar
    name is another platform."""
    return mistakes.listed(known) if kind.startswith("platform") else mistakes.nearest(name, known)


def lookup(kind: str, name: str, known: Mapping[str, Item]) -> Item:
    """``known[name]``. Raises ConfigError: the mistake in the file of this name; or one that lists
    valid names or the nearest one."""
    try:
        return known[name]
    except KeyError:
        raise ConfigError(f"no {kind} is called {name!r}; {remedy(kind, name, known)}") from None


Spec = TypeVar("Spec", bound=Strict)


def _load_all(directory: Path, kind: type[Spec]) -> Files[Spec]:
    specs: Files[Spec] = Files()
    for path in sorted((*directory.glob("*.yaml"), *directory.glob("*.yml"))):
        try:
            if path.suffix == ".yml":
                raise ConfigError(f"{path}: only *.yaml is read; rename it to {path.stem}.yaml")
            if not NAME.fullmatch(path.stem):
                raise ConfigError(
                    f"{path}: {path.stem!r} cannot be a name; it names directories too, so use "
                    "letters, digits, dots and hyphens"
                )
            spec = checked(str(path), kind, plain_of(path))
            if isinstance(spec, ModelSpec):
                _check_parameters(path, spec)
            specs[path.stem] = spec
        except ConfigError as error:
            specs.bad[path.stem] = error
    return specs


def plain_of(path: Path) -> dict[Any, Any]:
    """The keys and values of a configuration file, not yet checked. Raises ConfigError."""
    try:
        plain = read_yaml(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (RecordError, YamlFileError) as error:
        raise ConfigError(str(error)) from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: expected keys and values, not {mistakes.in_yaml(plain)}")
    return plain


def checked(source: str, kind: type[Spec], plain: Any) -> Spec:
    """Check plain data against the model ``kind``. Raises ConfigError, which names ``source`` and
    the key."""
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        lines = mistakes.in_words(error, kind, plain)
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def _check_parameters(path: Path, spec: ModelSpec) -> None:
    count, made = formulas.parameters(spec.record(path.stem)).total, "the dimensions make"
    if count > (most := bounds.PARAMETERS.most):
        raise ConfigError(f"{path}: {made} {count:.5g} parameters, more than {most:.0g}")
    if spec.published and abs(count / spec.published.parameters - 1) > 0.001:
        raise ConfigError(
            f"{path}: {made} {count:.5g} parameters, but published.parameters is "
            f"{spec.published.parameters:.5g}; they must agree within 0.1 %"
        )


def check_references(sweep: SweepSpec, study: Study) -> None:
    """Raise ConfigError, which names the key, if a sweep refers to a file that is not there, or if
    GPUs are to cool down and nobody knows to what."""
    platforms = study.platforms_of(sweep)
    own: tuple[str, Iterable[str]] = ("platform of this sweep", platforms)
    trainers = (NATIVE, *study.trainers, *study.trainers.bad)
    named: list[tuple[str, Any, str, Iterable[str]]] = [
        ("platforms", platforms, "platform", study.platforms),
        ("data", sweep.data, "data", study.data),
        ("training.trainer", sweep.training.trainer, "trainer", trainers),
    ]
    cooled = [("protocol", sweep.protocol.cool_down, platforms)]
    for number, entry in enumerate(sweep.matrix):
        place = f"matrix.{number}"
        named.append((f"{place}.models", entry.models, "model", study.models))
        named.append((f"{place}.data", entry.data, "data", study.data))
        named.append((f"{place}.platforms", entry.platforms, *own))
        named.append((f"{place}.trainer", entry.trainer, "trainer", trainers))
        cooled.append((place, entry.cool_down, values(entry.platforms or platforms)))
    for number, out in enumerate(sweep.exclude):
        place = f"exclude.{number}"
        named.append((f"{place}.data", out.data, "data", study.data))
        named.append((f"{place}.model", out.model, "model", study.models))
        named.append((f"{place}.trainer", out.trainer, "trainer", trainers))
        # A sweep for all platforms may leave out one that is not there, as in an archive.
        if not sweep.is_for_all:
            named.append((f"{place}.platform", out.platform, *own))
    for key, names, kind, known in named:
        there = {*known, *getattr(known, "bad", ())}
        for name in values(names or ()):
            if name not in there:
                raise ConfigError(
                    f"{key}: no {kind} is called {name!r}; {remedy(kind, name, known)}"
                )
    for place, cool_down, where in cooled:
        for name in where if cool_down else ():
            platform = study.platforms.get(name)
            if platform and platform.idle_temperature_c is None:
                raise ConfigError(
                    f"{place}.cool_down: platform {name} has no idle_temperature_c to cool down "
                    f"to; set it in {study.directory}/platforms/{name}.yaml to what its GPUs show "
                    "after long idling, or leave cool_down out"
                )
