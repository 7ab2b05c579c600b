"""The files under ``config/``: typed, frozen, and refused where they say something impossible.

``load_study`` reads them all. Every mistake in them is a ConfigError that names the file, the key,
what was expected and, where a name is wrong, the nearest valid one.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from workflow_lib import formulas, records

#: what a file's name, and so a directory under results/, may look like
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")

#: a word that Slurm takes in an #SBATCH line, where nothing can be quoted reliably
SchedulerWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]*$")]
#: --constraint also has operators: "[rack1|rack2]", "a&b", "a*2"
SchedulerConstraint = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:@+&|*()\[\]-]+$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
#: text without control characters: it may end up in a script, quoted, or in a page, escaped
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class ConfigError(ValueError):
    """A configuration file is wrong. The message says which, where and what to write instead."""


class Strict(BaseModel):
    """Unknown keys are refused, nothing changes after loading, and "8" is not 8."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Published(Strict):
    """A figure to check a definition against, and where it was published."""

    #: all parameters of the model, embeddings included
    parameters: PositiveFloat
    source: Text


class ModelSpec(Strict):
    """``config/models/<name>.yaml``: a decoder's dimensions; see records.Model."""

    description: Text
    family: Literal["gpt", "llama", "mixtral"]
    layers: PositiveInt
    hidden_size: PositiveInt
    ffn_hidden_size: PositiveInt
    attention_heads: PositiveInt
    kv_heads: PositiveInt
    sequence_length: PositiveInt
    vocabulary_size: PositiveInt
    vocabulary_multiple: PositiveInt = 1
    experts: Annotated[int, Field(ge=0)] = 0
    experts_per_token: Annotated[int, Field(ge=0)] = 0
    published: Published | None = None

    @model_validator(mode="after")
    def _shapes_agree(self) -> ModelSpec:
        if self.hidden_size % (2 * self.attention_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} must be an even multiple of attention_heads "
                f"{self.attention_heads}"
            )
        if self.attention_heads % self.kv_heads:
            raise ValueError(
                f"attention_heads {self.attention_heads} must be a multiple of kv_heads "
                f"{self.kv_heads}"
            )
        if (self.family == "mixtral") != (self.experts > 0):
            raise ValueError("a mixtral model has experts, and no other family does")
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise ValueError(
                f"experts_per_token must lie between 1 and experts ({self.experts}), "
                f"not {self.experts_per_token}"
            )
        return self

    def record(self, name: str) -> records.Model:
        """The dimensions as cells and compute nodes know them."""
        names = {field.name for field in dataclasses.fields(records.Model)} - {"name"}
        return records.Model(name=name, **self.model_dump(include=names))


class Container(Strict):
    """The image that a job's processes run in."""

    runtime: Literal["apptainer", "pyxis"]
    image: Text
    #: directories of the host that the container sees under the same path
    mounts: tuple[Text, ...] = Field(default=(), strict=False)


class Network(Strict):
    """What joins the nodes."""

    kind: Literal["infiniband", "ethernet", "none"]
    adapters_per_node: Annotated[int, Field(ge=0)]
    gbit_per_s_per_adapter: Annotated[float, Field(ge=0)]


class Platform(Strict):
    """``config/platforms/<name>.yaml``: a partition of a cluster, or one machine."""

    description: Text
    scheduler: Literal["slurm", "local"]

    # How a job asks for nodes.
    partition: SchedulerWord | None = None
    account: SchedulerWord | None = None
    qos: SchedulerWord | None = None
    constraint: SchedulerConstraint | None = None
    reservation: SchedulerWord | None = None
    #: how GPUs are asked for: --gpus-per-node=<type>:<n>, or --gres=gpu:<type>:<n>
    gpu_request: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    #: the type as the site's Slurm names it; null asks for a number alone
    gpu_type: SchedulerWord | None = None
    exclusive: bool = True
    cpus_per_gpu: PositiveInt
    memory_per_node_gb: PositiveInt
    #: the longest run that the partition takes, in minutes
    time_limit_max_min: PositiveInt

    # What the nodes are.
    nodes: PositiveInt
    gpus_per_node: PositiveInt
    gpus_per_package: PositiveInt = 1
    #: must occur in the GPU name that the driver reports; null where any will do
    gpu: Text | None
    gpu_memory_gb: PositiveFloat | None
    peak_bf16_tflops: PositiveFloat | None
    peak_fp32_tflops: PositiveFloat | None
    power_limit_w: PositiveFloat | None
    network: Network
    #: for each GPU of a node, where it sits in the air stream
    airflow: tuple[Literal["front", "rear", "unknown"], ...] = Field(strict=False)
    telemetry: records.TelemetrySource

    # What its jobs run in.
    python: Text
    modules: tuple[Text, ...] = Field(default=(), strict=False)
    container: Container | None = None
    environment: Mapping[VariableName, str] = {}

    #: what share of the peak the planner expects training to reach; only for its estimates
    expected_mfu: Annotated[float, Field(gt=0, le=1)] = 0.4

    @model_validator(mode="after")
    def _agrees(self) -> Platform:
        if self.scheduler == "slurm" and self.partition is None:
            raise ValueError("a platform with scheduler slurm needs a partition")
        if self.scheduler == "local" and self.nodes != 1:
            raise ValueError(f"a platform with scheduler local has 1 node, not {self.nodes}")
        if len(self.airflow) != self.gpus_per_node:
            raise ValueError(
                f"airflow has {len(self.airflow)} entries, expected one for each of "
                f"{self.gpus_per_node} GPUs"
            )
        if self.gpus_per_node % self.gpus_per_package:
            raise ValueError(
                f"gpus_per_node {self.gpus_per_node} must be a multiple of gpus_per_package "
                f"{self.gpus_per_package}"
            )
        return self

    @field_validator("environment")
    @classmethod
    def _no_null_bytes(cls, environment: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in environment.items():
            if "\0" in value:
                raise ValueError(f"the value of {name} holds a null byte")
        return environment


class DataSpec(Strict):
    """``config/data/<name>.yaml``: the tokens to train on."""

    description: Text
    kind: Literal["text", "synthetic"]
    #: "bytes", or the path of a Hugging Face tokenizer.json
    tokenizer: Text | None = None
    #: text files, globs, or "python-standard-library": the sources that Python carries
    sources: tuple[Text, ...] = Field(default=(), strict=False)
    maximum_tokens: PositiveInt | None = None

    @model_validator(mode="after")
    def _agrees(self) -> DataSpec:
        if self.kind == "text" and not (self.tokenizer and self.sources):
            raise ValueError("data of kind text need a tokenizer and at least one source")
        if self.kind == "synthetic" and (self.tokenizer or self.sources or self.maximum_tokens):
            raise ValueError("data of kind synthetic take no tokenizer, sources or maximum_tokens")
        return self


Scalar = TypeVar("Scalar")
Axis = Scalar | Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)]
StrictPositive = Annotated[int, Field(gt=0, strict=True)]
ZeroStage = Annotated[int, Field(ge=0, le=3, strict=True)]
StrictBool = Annotated[bool, Field(strict=True)]


class TrainingAxes(Strict):
    """Training options of a sweep. A list is an axis of the matrix; an absent option is inherited.

    See records.Training for what each means.
    """

    zero_stage: Axis[ZeroStage] | None = None
    micro_batch_size: Axis[StrictPositive] | None = None
    global_batch_size: Axis[StrictPositive] | None = None
    precision: Axis[records.Precision] | None = None
    recomputation: Axis[records.Recomputation] | None = None
    overlap: Axis[StrictBool] | None = None
    learning_rate: Axis[PositiveFloat] | None = None
    seed: Axis[Annotated[int, Field(ge=0, strict=True)]] | None = None


class Block(TrainingAxes):
    """One block of a sweep's matrix: the product of its axes, for each platform and model."""

    #: those of the sweep's platforms that the block is for; all unless given
    platforms: Axis[str] | None = None
    models: Axis[str]
    #: GPUs to run on; all of the platform's unless given
    gpus: Axis[StrictPositive] | None = None
    tp: Axis[StrictPositive] = 1
    #: "rest" is what the other degrees leave of the GPUs
    pp: Axis[StrictPositive] | Literal["rest"] = 1
    dp: Axis[StrictPositive] | Literal["rest"] = "rest"
    ep: Axis[StrictPositive] = 1

    @model_validator(mode="after")
    def _one_rest(self) -> Block:
        if self.pp == "rest" and self.dp == "rest":
            raise ValueError("only one of pp and dp can be rest; give the other a number")
        return self


class Exclusion(TrainingAxes):
    """Leaves out every cell that has all of these values; a list means any of its values."""

    platform: Axis[str] | None = None
    model: Axis[str] | None = None
    tp: Axis[StrictPositive] | None = None
    pp: Axis[StrictPositive] | None = None
    dp: Axis[StrictPositive] | None = None
    ep: Axis[StrictPositive] | None = None


class Protocol(Strict):
    """How each run of a sweep is measured."""

    warmup_steps: Annotated[int, Field(ge=1)]
    measured_steps: PositiveInt
    idle_baseline_s: Annotated[float, Field(ge=0)]
    sample_rate_hz: Annotated[float, Field(ge=1, le=50)]


class SweepSpec(Strict):
    """``config/sweeps/<name>.yaml``: a matrix of cells with rules."""

    description: Text
    platforms: tuple[str, ...] = Field(min_length=1, strict=False)
    repeats: PositiveInt
    data: str
    protocol: Protocol
    #: what every block inherits
    training: TrainingAxes
    matrix: tuple[Block, ...] = Field(min_length=1, strict=False)
    exclude: tuple[Exclusion, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _options_complete(self) -> SweepSpec:
        for number, block in enumerate(self.matrix, start=1):
            for option in TrainingAxes.model_fields:
                if getattr(block, option) is None and getattr(self.training, option) is None:
                    raise ValueError(
                        f"{option} is given neither in training nor in block {number} of matrix"
                    )
        return self


@dataclasses.dataclass(frozen=True)
class Study:
    """Everything under ``config/``, by name."""

    directory: Path
    models: Mapping[str, ModelSpec]
    platforms: Mapping[str, Platform]
    data: Mapping[str, DataSpec]
    sweeps: Mapping[str, SweepSpec]


def load_study(directory: Path) -> Study:
    """Read and check every file under ``directory``, references between them included.

    Raises ConfigError.
    """
    if not directory.is_dir():
        raise ConfigError(f"{directory}: no such directory; expected the study's configuration")
    study = Study(
        directory=directory,
        models=_load_all(directory / "models", ModelSpec),
        platforms=_load_all(directory / "platforms", Platform),
        data=_load_all(directory / "data", DataSpec),
        sweeps=_load_all(directory / "sweeps", SweepSpec),
    )
    for name, model in study.models.items():
        _check_published(directory / "models" / f"{name}.yaml", model.record(name), model.published)
    for name, sweep in study.sweeps.items():
        _check_references(directory / "sweeps" / f"{name}.yaml", sweep, study)
    return study


def values(axis: Any) -> tuple[Any, ...]:
    """The values of an axis: those of a list, or the one that stands alone."""
    return tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


def nearest(name: str, valid: Iterable[str]) -> str:
    """A remedy for a wrong name: the nearest valid one, else some of them."""
    known = sorted(valid)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    more = f" and {len(known) - 20} more" if len(known) > 20 else ""
    return f"valid: {', '.join(known[:20]) or 'none'}{more}"


def lookup(kind: str, name: str, known: Mapping[str, Scalar]) -> Scalar:
    """``known[name]``, or a ConfigError that says what there is."""
    if name not in known:
        raise ConfigError(f"no {kind} is called {name!r}; {nearest(name, known)}")
    return known[name]


Spec = TypeVar("Spec", bound=Strict)


def _load_all(directory: Path, kind: type[Spec]) -> dict[str, Spec]:
    specs = {}
    for path in sorted(directory.glob("*.yaml")):
        if not NAME.fullmatch(path.stem):
            raise ConfigError(
                f"{path}: {path.stem!r} cannot be a name; it names directories too, so use letters, "
                "digits, dots and hyphens"
            )
        specs[path.stem] = _load(path, kind)
    return specs


def _load(path: Path, kind: type[Spec]) -> Spec:
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not text in UTF-8: {error}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: expected keys and values, found {type(plain).__name__}")
    try:
        return kind.model_validate(plain)
    except ValidationError as error:
        errors = _most_specific([dict(each) for each in error.errors()])
        raise ConfigError("\n".join(_explain(path, kind, each) for each in errors)) from None


def _most_specific(errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One error a key: of a value that may be one thing or a list, pydantic reports both readings."""
    for error in errors:
        error["loc"] = tuple(part for part in error["loc"] if not _is_type_tag(part))
    locations = [error["loc"] for error in errors]
    kept: dict[tuple[str | int, ...], dict[str, Any]] = {}
    for error in errors:
        deeper = any(o != error["loc"] and o[: len(error["loc"])] == error["loc"] for o in locations)
        if not deeper:
            kept.setdefault(error["loc"], error)
    return list(kept.values())


def _explain(path: Path, kind: type[Strict], error: dict[str, Any]) -> str:
    """One of pydantic's errors as ``file: key: what was wrong; what to do``."""
    location = error["loc"]
    key = ".".join(str(part) for part in location) or "(whole file)"
    if error["type"] == "extra_forbidden":
        return f"{path}: {key}: unknown key; {nearest(str(location[-1]), _keys(kind, location))}"
    if error["type"] == "missing":
        return f"{path}: {key}: missing; this key is required"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        return f"{path}: {key}: {message}" if location else f"{path}: {message}"
    return f"{path}: {key}: {message}, not {error['input']!r}"


def _is_type_tag(part: str | int) -> bool:
    """Whether pydantic, not the file, put this part into an error's location (a union's branch)."""
    tags = ("int", "str", "bool", "float", "constrained-int", "constrained-float", "constrained-str")
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
    if published is None:
        return
    count = formulas.parameters(model).total
    if abs(count / published.parameters - 1) > 0.001:
        raise ConfigError(
            f"{path}: the dimensions make {count:.5g} parameters, but published.parameters is "
            f"{published.parameters:.5g}; they must agree within 0.1 %"
        )


def _check_references(path: Path, sweep: SweepSpec, study: Study) -> None:
    def check(key: str, kind: str, names: Iterable[str], known: Iterable[str]) -> None:
        for name in names:
            if name not in set(known):
                raise ConfigError(f"{path}: {key}: no {kind} is called {name!r}; {nearest(name, known)}")

    check("platforms", "platform", sweep.platforms, study.platforms)
    check("data", "data", [sweep.data], study.data)
    for number, block in enumerate(sweep.matrix):
        check(f"matrix.{number}.models", "model", values(block.models), study.models)
        if block.platforms is not None:
            check(f"matrix.{number}.platforms", "platform of this sweep", values(block.platforms), sweep.platforms)
    for number, exclusion in enumerate(sweep.exclude):
        if exclusion.model is not None:
            check(f"exclude.{number}.model", "model", values(exclusion.model), study.models)
        if exclusion.platform is not None:
            check(f"exclude.{number}.platform", "platform of this sweep", values(exclusion.platform), sweep.platforms)
