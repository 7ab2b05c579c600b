"""Every key of the configuration, found in the models themselves: hostile text is refused with the
file and the key, or it is what went in."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from tests.conftest import ROOT, load_sound
from tests.hostile import HOSTILE
from workflow_lib.config import (
    DataSpec,
    Invocation,
    ModelSpec,
    Platform,
    Strict,
    SweepSpec,
    TrainerSpec,
)
from workflow_lib.study import ConfigError, checked

#: in a place: the key of a mapping, where others are names of fields, or 0 for an entry of a list
KEY = "<key>"
Place = tuple[str | int, ...]

#: a whole file of each kind, with everything that may be left out
WHOLE: dict[type[Strict], dict[str, Any]] = {
    Platform: yaml.safe_load((ROOT / "config/platforms/h200.yaml").read_text("utf-8"))
    | {"container": {"runtime": "apptainer", "image": "image.sif"}},
    ModelSpec: yaml.safe_load((ROOT / "config/models/llama3-8b.yaml").read_text("utf-8"))
    | {"rotary_scaling": {"kind": "linear", "factor": 2.0}},
    DataSpec: yaml.safe_load((ROOT / "config/data/python-sources.yaml").read_text("utf-8")),
    SweepSpec: yaml.safe_load((ROOT / "config/sweeps/demo.yaml").read_text("utf-8"))
    | {"exclude": [{"tp": 2}]},
    Invocation: yaml.safe_load((ROOT / "config/config.yaml").read_text("utf-8")),
    TrainerSpec: yaml.safe_load((ROOT / "config/trainers/transformers.yaml").read_text("utf-8")),
}
WHOLE[SweepSpec]["protocol"]["cool_down"] = {"within_c": 5.0, "limit_s": 60.0}
WHOLE[SweepSpec]["matrix"][0]["cool_down"] = {"within_c": 5.0, "limit_s": 60.0}
WHOLE[SweepSpec]["matrix"][0]["predicted"] = {
    "against": "local/gpt3-tiny/plain",
    "time_gain": [0.03, 0.02, 0.04],
    "energy_gain": [0.0, -0.01, 0.01],
}

#: The places that take hostile text, and where it goes from there: tests that follow it. Text that
#: names something else in the configuration is refused where that is looked up.
FOLLOWED = {
    "Platform.description": "nowhere",
    "Platform.constraint": "tests/launch/test_hostile.py",
    "Platform.gpu": "tests/workflow/test_hostile.py",
    "Platform.emulated": "tests/report/test_page.py, tests/test_plan.py",
    "Platform.python": "tests/launch/test_hostile.py, tests/slurm/test_hostile.py",
    "Platform.modules.0": "tests/launch/test_hostile.py, tests/slurm/test_hostile.py",
    "Platform.container.image": "tests/launch/test_hostile.py, tests/slurm/test_hostile.py",
    "Platform.container.mounts.0": "tests/launch/test_hostile.py, tests/slurm/test_hostile.py",
    "Platform.environment.NAME": "tests/launch/test_hostile.py, tests/slurm/test_hostile.py",
    "ModelSpec.description": "nowhere",
    "ModelSpec.published.source": "nowhere",
    "DataSpec.description": "nowhere",
    "DataSpec.tokenizer": "tests/workflow/test_hostile.py",
    "DataSpec.sources.0": "tests/workflow/test_hostile.py",
    "SweepSpec.description": "tests/workflow/test_hostile.py",
    "Invocation.config_directory": "tests/workflow/test_hostile.py",
    "Invocation.results_directory": "tests/workflow/test_hostile.py, tests/slurm/test_hostile.py",
    "Invocation.sweeps.0": "looked up",
    "Invocation.platform": "looked up",
    "SweepSpec.platforms.0": "looked up",
    "SweepSpec.data": "looked up",
    "SweepSpec.matrix.0.platforms": "looked up",
    "SweepSpec.matrix.0.platforms.0": "looked up",
    "SweepSpec.matrix.0.models": "looked up",
    "SweepSpec.matrix.0.models.0": "looked up",
    "SweepSpec.matrix.0.data": "looked up",
    "SweepSpec.matrix.0.data.0": "looked up",
    "SweepSpec.matrix.0.predicted.against": "tests/test_cells.py",
    "SweepSpec.exclude.0.platform": "looked up",
    "SweepSpec.exclude.0.platform.0": "looked up",
    "SweepSpec.exclude.0.model": "looked up",
    "SweepSpec.exclude.0.model.0": "looked up",
    "SweepSpec.exclude.0.data": "looked up",
    "SweepSpec.exclude.0.data.0": "looked up",
    "SweepSpec.training.trainer": "looked up",
    "SweepSpec.training.trainer.0": "looked up",
    "SweepSpec.matrix.0.trainer": "looked up",
    "SweepSpec.matrix.0.trainer.0": "looked up",
    "SweepSpec.exclude.0.trainer": "looked up",
    "SweepSpec.exclude.0.trainer.0": "looked up",
    "TrainerSpec.description": "nowhere",
    "TrainerSpec.command.0": "tests/workflow/test_trainers.py",
    "TrainerSpec.accepts.0.NAME.0": "tests/test_trainers.py",
    "TrainerSpec.files.0": "tests/test_trainers.py",
    "TrainerSpec.differs": "nowhere",
}


def places(annotation: Any) -> Iterator[Place]:
    """Where a value of this type can hold text, were its author to write some there."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            yield from ((name, *rest) for rest in places(field.annotation))
    elif origin is typing.Annotated:
        yield from places(arguments[0])
    elif origin in (typing.Union, types.UnionType):
        for each in arguments:
            yield from places(each)
    elif origin is tuple:
        yield ()
        yield from ((0, *rest) for rest in places(arguments[0]))
    elif isinstance(origin, type) and issubclass(origin, Mapping):
        yield (KEY,)
        yield from (("NAME", *rest) for rest in places(arguments[1]))
    else:
        assert annotation in (str, int, float, bool, type(None)) or origin is typing.Literal, (
            f"a kind of field that this test does not know: {annotation}"
        )
        yield ()


def put(plain: Any, place: Place, value: str) -> Any:
    """The plain data with the value in that place, and all else as it was."""
    if not place:
        return value
    first, *rest = place
    if first == KEY:
        return {value: "1"}
    if first == 0:
        inner = plain[0] if isinstance(plain, list) and plain else None
        return [put(inner, tuple(rest), value)]
    found = plain if isinstance(plain, dict) else {}
    return {**found, first: put(found.get(first), tuple(rest), value)}


def get(model: Any, place: Place) -> Any:
    """What is in that place."""
    for each in place:
        by_item = isinstance(each, int) or isinstance(model, Mapping)
        model = model[each] if by_item else getattr(model, each)
    return model


PLACES = [(kind, place) for kind in WHOLE for place in dict.fromkeys(places(kind))]


def called(kind: type[Strict], place: Place) -> str:
    return ".".join([kind.__name__, *map(str, place)])


def test_text_in_any_place_is_refused_by_file_and_key_or_stays_what_it_is():
    taken = {}
    for kind, place in PLACES:
        for value in HOSTILE:
            try:
                found = checked("some/file.yaml", kind, put(WHOLE[kind], place, value))
            except ConfigError as error:
                message = str(error)
                key = ".".join(map(str, place)).partition(f".{KEY}")[0].removesuffix(".NAME")
                # Of this key alone: else WHOLE lacks something, and the text was not looked at.
                lines = [message] if KEY in place else message.splitlines()
                for line in lines:
                    assert line.startswith(f"some/file.yaml: {key}"), message
                assert message.replace("\n", "").isprintable(), message
            else:
                assert get(found, place) == value, called(kind, place)
                taken.setdefault(called(kind, place), []).append(value)
    # A new key is followed to where it goes, before it is added to the list above.
    assert taken.keys() == FOLLOWED.keys()
    for name, where in FOLLOWED.items():
        for path in where.split(", "):
            assert where in ("nowhere", "looked up") or Path(ROOT, path).exists(), name


@pytest.mark.parametrize(
    "place", sorted(n for n, where in FOLLOWED.items() if where == "looked up")
)
def test_a_name_of_nothing_is_refused_with_the_file_and_the_key(place, tmp_path):
    kind, *keys = place.split(".")
    if kind == "Invocation":
        return  # rules look these up: see tests/workflow/test_hostile.py
    for directory, plain in (("models", ModelSpec), ("data", DataSpec), ("platforms", Platform)):
        (tmp_path / directory).mkdir()
        path = tmp_path / directory / "only.yaml"
        path.write_text(yaml.safe_dump(WHOLE[plain]), encoding="utf-8")
    (tmp_path / "sweeps").mkdir()
    names = {"platforms": ["only"], "data": "only", "matrix": [{"models": "only"}]}
    names["exclude"] = [{"tp": 2}]
    whole = WHOLE[SweepSpec] | names
    for value in HOSTILE[::4]:
        keys_ = tuple(int(each) if each.isdigit() else each for each in keys)
        path = tmp_path / "sweeps" / "sweep.yaml"
        path.write_text(yaml.safe_dump(put(whole, keys_, value)), encoding="utf-8")
        with pytest.raises(ConfigError) as refused:
            load_sound(tmp_path)
        message = str(refused.value)
        assert message.startswith(f"{path}: {'.'.join(keys).removesuffix('.0')}: "), message
        assert message.isprintable(), message
