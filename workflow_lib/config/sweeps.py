"""``config/sweeps``: matrices of cells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import AfterValidator, Field, model_validator

from workflow_lib.config.fields import PositiveFloat, Strict, Text
from workflow_lib.config.protocol import CoolDown, Protocol
from workflow_lib.records import axes, bounds
from workflow_lib.records.degrees import Schedule
from workflow_lib.records.training import (
    NATIVE,
    Float8Recipe,
    Precision,
    Recomputation,
    Routing,
    Training,
    Workload,
)

Scalar = TypeVar("Scalar")
Axis: TypeAlias = Scalar | Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)]
StrictPositive = Annotated[int, Field(gt=0, le=bounds.DIMENSION.most, strict=True)]
StrictRanks = Annotated[int, Field(gt=0, le=bounds.RANKS.most, strict=True)]
#: one number for all GPUs of a node, or one for each
Limits: TypeAlias = Scalar | Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)] | None
Watts = Annotated[int, Field(gt=0, le=bounds.POWER_LIMIT_W.most, strict=True)]
Megahertz = Annotated[int, Field(gt=0, le=bounds.CLOCK_LIMIT_MHZ.most, strict=True)]
#: a UUID as NVML and the simulated source write it
Uuid = Annotated[str, Field(pattern=r"^(GPU|simulated)-[A-Za-z0-9._-]{1,80}$")]
Gpu = Annotated[int, Field(ge=0, lt=bounds.GPUS_OF_NODE.most)]
#: of a whole; below 0 it is lost
Share = Annotated[float, Field(ge=-1, le=1)]
ZeroStage = Annotated[int, Field(ge=0, le=3, strict=True)]
StrictBool = Annotated[bool, Field(strict=True)]


def values(axis: Any) -> tuple[Any, ...]:
    """The values of an axis: the items of a list, or the single value."""
    return tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)


class TrainingAxes(Strict):
    """Training options of a sweep. A list is an axis of the matrix; an absent option is inherited.

    See records.Training for what each means.
    """

    zero_stage: Axis[ZeroStage] | None = None
    """ZeRO stage, 0 to 3."""
    micro_batch_size: Axis[StrictPositive] | None = None
    """Sequences that a replica sends through the model at once."""
    global_batch_size: Axis[StrictPositive] | None = None
    """Sequences per optimiser step, over all replicas."""
    precision: Axis[Precision] | None = None
    """bf16 (mixed, with fp32 master weights), fp32, or fp8 (as bf16, with matrix products of the
    layers in fp8)."""
    fp8_recipe: Axis[Float8Recipe] | None = None
    """What shares a scale in fp8: rowwise, each row or column of a product's operands (the most
    exact); tensorwise, all of an operand (the fastest); rowwise_with_gw_hp, rowwise with the
    products that make gradients of weights in bf16. rowwise unless given."""
    recomputation: Axis[Recomputation] | None = None
    """What the backward pass computes again: none; selective: all but matrix products and
    attention; full: every layer from its input."""
    overlap: Axis[StrictBool] | None = None
    """Whether gradient reduction, parameter gathering, tensor-parallel communication and the
    pipeline's sends overlap with compute."""
    learning_rate: Axis[PositiveFloat] | None = None
    """Learning rate of AdamW."""
    weight_decay: Axis[Annotated[float, Field(ge=0, le=1)]] | None = None
    """Weight decay of AdamW: each step subtracts this share times the learning rate from every
    weight. 0.01 unless given."""
    seed: Axis[Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]] | None = None
    """Seed of the initial weights and of the order of the data."""
    backend: Axis[Literal["auto", "deepspeed", "torch"]] | None = None
    """The library that steps the model: deepspeed, torch (FSDP2 and torch.distributed.pipelining),
    or auto: deepspeed if it can run the cell, else torch. auto unless given."""
    trainer: Axis[str] | None = None
    """The program that trains: native, this repository's, or the name of a file in
    config/trainers. native unless given."""
    workload: Axis[Workload] | None = None
    """pretrain (all weights), lora (low-rank adapters on frozen weights) or inference (batched
    generation). pretrain unless given."""
    sequence_parallel: Axis[StrictBool] | None = None
    """Whether the sequence is cut between tensor-parallel ranks, if tp is above 1. true unless
    given."""
    compile: Axis[StrictBool] | None = None
    """Whether layers are compiled with torch.compile. false unless given."""
    routing: Axis[Routing] | None = None
    """dropless: experts take all tokens that the router sends them; balanced: every expert takes
    equally many rows (capacity factor 1), padded or with tokens dropped. dropless unless given."""
    balancing_loss: Axis[Annotated[float, Field(ge=0, le=bounds.QUANTITY.most)]] | None = None
    """Coefficient of the router's load-balancing loss. 0 unless given."""
    lora_rank: Axis[StrictPositive] | None = None
    """Rank of the adapters of workload lora. 16 unless given."""
    generated_tokens: Axis[StrictPositive] | None = None
    """Tokens that each sequence of workload inference generates; its prompt is the rest of the
    model's sequence_length. 128 unless given."""
    cuda_graphs: Axis[StrictBool] | None = None
    """Whether workload inference decodes by replaying a CUDA graph, so that the host launches no
    kernels one by one. Dense models with pp 1 only. false unless given."""


#: defaults of options that neither the sweep nor the entry of its matrix gives; options that are
#: not here must be given
OPTION_DEFAULTS: Mapping[str, Any] = {
    "backend": "auto",
    "trainer": NATIVE,
    "workload": "pretrain",
    "sequence_parallel": True,
    "compile": False,
    "routing": "dropless",
    "balancing_loss": 0.0,
    "lora_rank": 16,
    "generated_tokens": 128,
    "cuda_graphs": False,
    "fp8_recipe": "rowwise",
    "weight_decay": 0.01,
}


def option_of(entry: TrainingAxes, inherited: TrainingAxes, option: str) -> Any:
    """What an entry has for a training option: its own value, the inherited one, or the default;
    None if there is none of them."""
    given = (getattr(entry, option), getattr(inherited, option), OPTION_DEFAULTS.get(option))
    return next((value for value in given if value is not None), None)


#: options that have a meaning only with one value of another: that option, and the value
ONLY_WITH: Mapping[str, tuple[str, Any]] = {
    field.name: field.axis.only_with
    for field in axes.fields(Training)
    if field.axis.only_with is not None
}


def _is_interval(gain: tuple[float, ...]) -> tuple[float, ...]:
    """Raises ValueError where the estimate is not between the ends."""
    estimate, low, high = gain
    if not low <= estimate <= high:
        raise ValueError(
            f"is {list(gain)}, expected an estimate and the ends of its interval, as in "
            "[0.03, 0.02, 0.04]"
        )
    return gain


Gain = Annotated[
    tuple[Share, ...], Field(strict=False, min_length=3, max_length=3), AfterValidator(_is_interval)
]


class Prediction(Strict):
    """What a cell should gain, written down before it runs. The report sets it beside what was
    measured.
    """

    against: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/-]{1,400}$")]
    """Id of the cell of the same sweep that it is compared with."""
    time_gain: Gain
    """1 less the ratio of step times: the estimate and the ends of its 90 % interval."""
    energy_gain: Gain
    """1 less the ratio of the GPUs' energy a token: the estimate and the ends of its 90 %
    interval."""


class MatrixEntry(TrainingAxes):
    """An entry of a sweep's matrix: the product of its axes, for each platform and model."""

    platforms: Axis[str] | None = None
    """The platforms that the entry is for, among the sweep's; all of them unless given."""
    models: Axis[str]
    """Names of models."""
    data: Axis[str] | None = None
    """Names of data; the sweep's unless given."""
    gpus: Axis[StrictRanks] | None = None
    """Number of GPUs to run on; all of the platform's unless given."""
    nodes: StrictRanks | None = None
    """Instead of gpus: the GPUs of so many nodes, or of all where the platform has fewer."""
    tp: Axis[StrictRanks] = 1
    """Tensor-parallel degree."""
    cp: Axis[StrictRanks] = 1
    """Context-parallel degree: each sequence is cut over cp ranks."""
    pp: Axis[StrictRanks] | Literal["rest"] = 1
    """Pipeline-parallel degree; rest means the GPUs over the product of the other degrees."""
    dp: Axis[StrictRanks] | Literal["rest"] = "rest"
    """Data-parallel degree; rest means the GPUs over the product of the other degrees."""
    ep: Axis[StrictRanks] = 1
    """Expert-parallel degree: experts are spread over ep of the dp replicas."""
    virtual_stages: Axis[StrictRanks] = 1
    """Chunks of the model on each pipeline rank; above 1 the schedule is interleaved."""
    schedule: Axis[Schedule] = "1f1b"
    """Order of a pipeline's passes: 1f1b; or zero-bubble or zero-bubble-v, in which ranks compute
    gradients of weights instead of waiting. zero-bubble-v needs two virtual stages."""
    stage_layers: (
        Axis[Literal["even", "auto"]]
        | Annotated[tuple[StrictRanks, ...], Field(strict=False, min_length=1)]
    ) = "even"
    """Transformer layers of each stage, first to last; or even: equally many; or auto: divided so
    that the pipeline's ranks have equal work, with embedding, head and loss counted. even unless
    given. A list of even and auto is an axis."""
    gpu_order: Literal["rotated"] | Annotated[tuple[Gpu, ...], Field(strict=False)] = ()
    """The node's GPU of each local rank; local rank i uses GPU i unless given. rotated makes a cell
    for each stage of a node. From one cell to the next the stages move on by one stage's GPUs, so
    each GPU has each stage of its node once."""
    gpu_uuids: Annotated[tuple[Uuid, ...], Field(strict=False)] = ()
    """UUIDs of the GPUs that the cells must use, as `nvidia-smi -L` lists them: each node's in
    order of their indices, one node after the other. A job does not train on other GPUs. Any GPUs
    unless given."""
    power_limits_w: Limits[Watts] = None
    """Power limit, W, that the job sets on each GPU of a node, by its index, or one number for all.
    No limit is set unless given. The platform must have gpu_settings: allowed."""
    clock_limits_mhz: Limits[Megahertz] = None
    """Upper limit, MHz, to which the job locks the SM clock of each GPU of a node, by its index, or
    one number for all. No clock is locked unless given. The platform must have gpu_settings:
    allowed."""
    cool_down: CoolDown | None = None
    """Wait for cool GPUs before the idle baseline of these cells; the protocol's unless given."""

    predicted: Prediction | None = None
    """What the entry's one cell should gain, as `make place` writes it; nothing unless given."""

    @model_validator(mode="after")
    def _one_rest(self) -> MatrixEntry:
        if self.pp == "rest" and self.dp == "rest":
            raise ValueError("only one of pp and dp can be rest; give the other a number")
        if self.gpus is not None and self.nodes is not None:
            raise ValueError("give either gpus or nodes, whose GPUs are then all used")
        return self


class Exclusion(TrainingAxes):
    """Leaves out every cell that has all of these values; a list means any of its values."""

    platform: Axis[str] | None = None
    """Name of a platform."""
    model: Axis[str] | None = None
    """Name of a model."""
    data: Axis[str] | None = None
    """Name of data."""
    tp: Axis[StrictRanks] | None = None
    """Tensor-parallel degree."""
    cp: Axis[StrictRanks] | None = None
    """Context-parallel degree."""
    pp: Axis[StrictRanks] | None = None
    """Pipeline-parallel degree; it also matches cells whose entry says rest."""
    dp: Axis[StrictRanks] | None = None
    """Data-parallel degree; it also matches cells whose entry says rest."""
    ep: Axis[StrictRanks] | None = None
    """Expert-parallel degree."""
    virtual_stages: Axis[StrictRanks] | None = None
    """Chunks of the model on each pipeline rank."""
    schedule: Axis[Schedule] | None = None
    """Order of a pipeline's passes."""


class SweepSpec(Strict):
    """``config/sweeps/<name>.yaml``: a matrix of cells, and how they are measured."""

    description: Text
    """One line on what the sweep is for."""
    platforms: tuple[str, ...] = Field(min_length=1, strict=False)
    """Names of platforms, or [all]; a sweep over several has its own results and page for each."""
    repeats: Annotated[int, Field(gt=0, le=bounds.REPEATS.most)]
    """Measured runs of each cell."""
    data: str
    """Name of the data; an entry of the matrix may name other data."""
    protocol: Protocol
    """How each run is measured."""
    training: TrainingAxes
    """Training options that every entry of the matrix inherits."""
    matrix: tuple[MatrixEntry, ...] = Field(min_length=1, strict=False)
    """The entries whose cells make up the sweep."""
    exclude: tuple[Exclusion, ...] = Field(default=(), strict=False)
    """Cells to leave out."""

    @property
    def is_for_all(self) -> bool:
        """Whether the sweep is for every platform that there is."""
        return self.platforms == ("all",)

    def data_of(self, entry: MatrixEntry) -> tuple[str, ...]:
        """The names of an entry's data."""
        return values(self.data if entry.data is None else entry.data)

    def protocol_of(self, cool_down: CoolDown | None) -> Protocol:
        """The protocol of an entry with this cool-down of its own."""
        if cool_down is None:
            return self.protocol
        return self.protocol.model_copy(update={"cool_down": cool_down})

    @property
    def all_data(self) -> tuple[str, ...]:
        """The names of all data that the file refers to, in order."""
        named = [self.data, *(entry.data for entry in self.matrix)]
        named += [exclusion.data for exclusion in self.exclude]
        names = [name for axis in named if axis is not None for name in values(axis)]
        return tuple(dict.fromkeys(names))

    @property
    def other_trainers(self) -> tuple[str, ...]:
        """The names of all trainers that the file refers to and that are not our own, in order."""
        named = (options.trainer for options in (self.training, *self.matrix))
        names = dict.fromkeys(name for axis in named if axis for name in values(axis))
        return tuple(name for name in names if name != NATIVE)

    @model_validator(mode="after")
    def _nothing_twice_or_for_all(self) -> SweepSpec:
        if twice := [platform for platform in self.platforms if self.platforms.count(platform) > 1]:
            raise ValueError(f"platforms has {twice[0]} twice; keep one of them")
        for number, exclusion in enumerate(self.exclude):
            if all(value is None for _, value in exclusion):
                raise ValueError(
                    f"exclude.{number} has no key, so it would leave out every cell; say which "
                    "cells, as in {model: llama3-8b, tp: 8}"
                )
        return self

    @model_validator(mode="after")
    def _options_complete(self) -> SweepSpec:
        for number, entry in enumerate(self.matrix, start=1):
            for option in TrainingAxes.model_fields:
                if option_of(entry, self.training, option) is None:
                    raise ValueError(
                        f"{option} is given neither in training nor in entry {number} of matrix"
                    )
        return self

    @model_validator(mode="after")
    def _options_apply(self) -> SweepSpec:
        """Whoever gives the rank of adapters expects some to be trained."""
        for option, (other, value) in ONLY_WITH.items():
            of_entries = [
                set(values(option_of(entry, self.training, other))) for entry in self.matrix
            ]
            places = [("training", self.training, set().union(*of_entries))]
            for number, (entry, of_entry) in enumerate(zip(self.matrix, of_entries, strict=True)):
                places.append((f"matrix.{number}", entry, of_entry))
            for place, given, possible in places:
                if getattr(given, option) is not None and value not in possible:
                    raise ValueError(
                        f"{place} gives {option}, but none of its cells has {other}: {value}; "
                        f"add that {other}, or remove {option}"
                    )
        return self
