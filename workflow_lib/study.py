"""Reads and checks all files under ``config/``.

Every mistake is a ConfigError that names the file, the key, what was expected and, if a name is
wrong, the nearest valid one.
"""

from __future__ import annotations

import dataclasses
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


#: says whether a sweep is wanted, by its name and its file's content; null if that cannot be read
Wanted = Callable[[str, SweepSpec | None], bool]


@dataclass(frozen=True)
class Study:
    """The files under ``config/``, by their names."""

    directory: Path
    models: Mapping[str, ModelSpec]
    platforms: Mapping[str, Platform]
    data: Mapping[str, DataSpec]
    sweeps: Mapping[str, SweepSpec]
    #: mistakes in files that no wanted sweep needs
    left_out: tuple[str, ...] = ()

    def platforms_of(self, spec: SweepSpec) -> tuple[str, ...]:
        """The names of a sweep's platforms."""
        return tuple(self.platforms) if spec.is_for_all else spec.platforms

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


def all_sweeps(name: str, spec: SweepSpec | None) -> bool:
    """Want every sweep, and so every file."""
    return True


def of_view(*views: str) -> Wanted:
    """Want the sweeps whose results may have these names: ``<sweep>`` or ``<sweep>-<platform>``."""
    return lambda name, _: any(view == name or view.startswith(f"{name}-") for view in views)


def load_study(directory: Path, wanted: Wanted = all_sweeps) -> Study:
    """Read the files under ``directory``, and check them and the references between them.

    Unless all sweeps are wanted, a file with a mistake is left out if no wanted sweep needs it.
    Raises ConfigError for any other mistake.
    """
    if not directory.is_dir():
        raise ConfigError(
            f"{directory}: no such directory; expected the study's configuration: change to the "
            "clone, or name its config with --config"
        )
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
    """The files that a sweep's file refers to."""
    models = [name for entry in sweep.matrix for name in values(entry.models)]
    platforms = () if sweep.is_for_all else sweep.platforms
    named = {"models": models, "platforms": platforms, "data": sweep.all_data}
    return [directory / kind / f"{name}.yaml" for kind, names in named.items() for name in names]


def load_platform(directory: Path, name: str) -> Platform:
    """Read and check the file of one platform. Raises ConfigError."""
    paths = {path.stem: path for path in (directory / "platforms").glob("*.yaml")}
    return _load_named(lookup("platform", name, paths), Platform)


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


Item = TypeVar("Item")


def lookup(kind: str, name: str, known: Mapping[str, Item]) -> Item:
    """``known[name]``. Raises ConfigError, which lists valid names or the nearest one."""
    if name not in known:
        raise ConfigError(f"no {kind} is called {name!r}; {remedy(kind, name, known)}")
    return known[name]


Spec = TypeVar("Spec", bound=Strict)


def _load_all(
    directory: Path, kind: type[Spec], broken: dict[Path, ConfigError]
) -> dict[str, Spec]:
    """Name → contents of each file of a directory. Files with a mistake go into ``broken``."""
    specs = {}
    for path in sorted(directory.glob("*.yml")):
        broken[path] = ConfigError(f"{path}: only *.yaml is read; rename it to {path.stem}.yaml")
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
        if study.platforms[name].idle_temperature_c is None:
            raise ConfigError(
                f"{place}.cool_down: platform {name} has no idle_temperature_c to cool "
                f"down to; set it in {study.directory}/platforms/{name}.yaml to what its GPUs show "
                "after long idling, or leave cool_down out"
            )


def _check_references(path: Path, sweep: SweepSpec, study: Study) -> None:
    def check(key: str, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
        for name in names:
            if name not in set(known):
                raise ConfigError(
                    f"{path}: {key}: no {kind} is called {name!r}; {remedy(kind, name, known)}"
                )

    platforms = study.platforms_of(sweep)
    check("platforms", "platform", platforms, study.platforms)
    if sweep.protocol.cool_down:
        _check_idle_temperatures(f"{path}: protocol", platforms, study)
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
            _check_idle_temperatures(f"{path}: matrix.{number}", where, study)
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
