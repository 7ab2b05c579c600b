"""What the files under ``config/`` may hold: typed, frozen, and refused where it is impossible.

study.load_study reads them. ``docs/reference/configuration.md`` is made from the docstrings here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from workflow_lib import records

#: a word that Slurm takes in an #SBATCH line, where nothing can be quoted reliably
SchedulerWord = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]*$")]
#: --constraint also has operators: "[rack1|rack2]", "a&b", "a*2"
SchedulerConstraint = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.,:@+&|*()\[\]-]+$")]
VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
#: text without control characters: it may end up in a script, quoted, or in a page, escaped
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Strict(BaseModel):
    """Unknown keys are refused, nothing changes after loading, and "8" is not 8."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Published(Strict):
    """A figure to check a definition against, and where it was published."""

    parameters: PositiveFloat
    """All parameters of the model, embeddings included."""
    source: Text
    """Where the figure was published."""


class ModelSpec(Strict):
    """``config/models/<name>.yaml``: a decoder's dimensions; see records.Model."""

    description: Text
    """One line on the model, with its source."""
    family: Literal["gpt", "llama", "mixtral"]
    """GPT-3 style, Llama-3 style, or Llama-3 style with experts."""
    layers: PositiveInt
    """Decoder layers."""
    hidden_size: PositiveInt
    """Width of the residual stream."""
    ffn_hidden_size: PositiveInt
    """Width of the feed-forward part, or of one expert."""
    attention_heads: PositiveInt
    """Query heads."""
    kv_heads: PositiveInt
    """Key and value heads; as many as attention_heads without grouped-query attention."""
    sequence_length: PositiveInt
    """Tokens per sequence."""
    vocabulary_size: PositiveInt
    """Tokens of the tokenizer."""
    vocabulary_multiple: PositiveInt = 1
    """The vocabulary is padded to a multiple of this before training."""
    experts: Annotated[int, Field(ge=0)] = 0
    """Experts per layer; 0 in a dense model."""
    experts_per_token: Annotated[int, Field(ge=0)] = 0
    """Experts that see a token; 0 in a dense model."""
    published: Published | None = None
    """A published total, which the dimensions must reproduce within 0.1 %."""

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


#: names of variables whose values belong into no file
_SECRET = re.compile(r"TOKEN|SECRET|PASSW(OR)?D|CREDENTIAL|(API|PRIVATE)_?KEY", re.IGNORECASE)


class Container(Strict):
    """The image that a job's processes run in."""

    runtime: Literal["apptainer", "pyxis"]
    """What starts it."""
    image: Text
    """Path or address of the image."""
    mounts: tuple[Text, ...] = Field(default=(), strict=False)
    """Directories of the host that the container sees under the same path, besides the checkout."""


class Network(Strict):
    """What joins the nodes."""

    kind: Literal["infiniband", "ethernet", "none"]
    """The fabric between nodes."""
    adapters_per_node: Annotated[int, Field(ge=0)]
    """Network adapters in a node."""
    gbit_per_s_per_adapter: Annotated[float, Field(ge=0)]
    """Rate of one adapter, Gb/s."""


class Platform(Strict):
    """``config/platforms/<name>.yaml``: a partition of a cluster, or one machine."""

    description: Text
    """One line on the machine."""
    scheduler: Literal["slurm", "local"]
    """How jobs start: through Slurm, or on this machine."""

    partition: SchedulerWord | None = None
    """Slurm partition; required with Slurm."""
    account: SchedulerWord | None = None
    """Slurm account, where the site asks for one."""
    qos: SchedulerWord | None = None
    """Slurm quality of service."""
    constraint: SchedulerConstraint | None = None
    """Slurm features that the nodes must have."""
    reservation: SchedulerWord | None = None
    """Slurm reservation."""
    gpu_request: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    """How GPUs are asked for: --gpus-per-node=<type>:<n>, or --gres=gpu:<type>:<n>."""
    gpu_type: SchedulerWord | None = None
    """The type as the site's Slurm names it; null asks for a number alone."""
    exclusive: bool = True
    """Ask for whole nodes, so that nobody else's load is measured."""
    cpus_per_gpu: PositiveInt
    """CPUs for each rank."""
    memory_per_node_gb: PositiveInt
    """Host memory of a node; asked for where the node is not exclusive."""
    time_limit_max_min: PositiveInt
    """The longest run that the partition takes, in minutes."""

    nodes: PositiveInt
    """Nodes of the platform that a cell may use."""
    gpus_per_node: PositiveInt
    """GPUs in a node; on MI250, dies."""
    gpus_per_package: PositiveInt = 1
    """GPUs that share one package and its power sensor: 2 on MI250."""
    gpu: Text | None
    """Must occur in the GPU name that the driver reports; null where any will do."""
    gpu_memory_gb: PositiveFloat | None
    """Memory of one GPU, 10⁹ bytes; null where not known beforehand."""
    peak_bf16_tflops: PositiveFloat | None
    """Dense bf16 peak of one GPU, TFLOP/s; null gives no MFU, never a guessed one."""
    peak_fp32_tflops: PositiveFloat | None
    """Dense fp32 peak of one GPU, TFLOP/s."""
    memory_bandwidth_gb_per_s: PositiveFloat | None = None
    """Memory bandwidth of one GPU, 10⁹ bytes/s; null gives no estimate of how long inference
    takes."""
    power_limit_w: PositiveFloat | None
    """Power limit of one package, W."""
    network: Network
    """What joins the nodes."""
    airflow: tuple[Literal["front", "rear", "unknown"], ...] = Field(strict=False)
    """For each GPU of a node, by index, where it sits in the air stream."""
    telemetry: records.TelemetrySource
    """Whose sensors are read; auto takes real ones where there are any, else a simulation."""

    python: Text
    """The interpreter of jobs: a path in the checkout, an absolute path, or a name on the path."""
    modules: tuple[Text, ...] = Field(default=(), strict=False)
    """Environment modules to load."""
    container: Container | None = None
    """The image that processes run in."""
    environment: Mapping[VariableName, str] = {}
    """Environment variables to set. They are part of the cell: changing one trains anew."""
    expected_mfu: Annotated[float, Field(gt=0, le=1)] = 0.4
    """The share of the peak that the planner expects training to reach; only for its estimates."""

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
            if _SECRET.search(name):
                raise ValueError(
                    f"{name} looks like a secret, which must not lie in a file: export it in your "
                    "shell before submitting; jobs inherit it"
                )
        return environment


class DataSpec(Strict):
    """``config/data/<name>.yaml``: the tokens to train on."""

    description: Text
    """One line on the data."""
    kind: Literal["text", "synthetic"]
    """Tokenized text files, or random tokens from the cell's seed."""
    tokenizer: Text | None = None
    """bytes, or the path of a Hugging Face tokenizer.json."""
    sources: tuple[Text, ...] = Field(default=(), strict=False)
    """Text files in UTF-8, globs, or python-standard-library: the sources that Python carries."""
    maximum_tokens: PositiveInt | None = None
    """Stop after this many tokens."""

    @model_validator(mode="after")
    def _agrees(self) -> DataSpec:
        if self.kind == "text" and not (self.tokenizer and self.sources):
            raise ValueError("data of kind text need a tokenizer and at least one source")
        if self.kind == "synthetic" and (self.tokenizer or self.sources or self.maximum_tokens):
            raise ValueError("data of kind synthetic take no tokenizer, sources or maximum_tokens")
        return self


Scalar = TypeVar("Scalar")
Axis: TypeAlias = Scalar | Annotated[tuple[Scalar, ...], Field(strict=False, min_length=1)]
StrictPositive = Annotated[int, Field(gt=0, strict=True)]
ZeroStage = Annotated[int, Field(ge=0, le=3, strict=True)]
StrictBool = Annotated[bool, Field(strict=True)]


def values(axis: Any) -> tuple[Any, ...]:
    """The values of an axis: those of a list, or the one that stands alone."""
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
    precision: Axis[records.Precision] | None = None
    """bf16 (mixed, with fp32 master weights) or fp32."""
    recomputation: Axis[records.Recomputation] | None = None
    """What the backward pass computes again: none; selective: all but matrix products and
    attention; full: every layer from its input."""
    overlap: Axis[StrictBool] | None = None
    """Overlap gradient reduction, parameter gathering, tensor-parallel communication and the
    pipeline's sends with compute."""
    learning_rate: Axis[PositiveFloat] | None = None
    """Of AdamW."""
    seed: Axis[Annotated[int, Field(ge=0, strict=True)]] | None = None
    """Of the initial weights and the order of the data."""
    backend: Axis[Literal["auto", "deepspeed", "torch"]] | None = None
    """What trains: deepspeed, torch (FSDP2 and torch.distributed.pipelining), or auto: deepspeed
    where it can, else torch. auto unless given."""
    workload: Axis[records.Workload] | None = None
    """pretrain (all weights), lora (low-rank adapters on frozen weights) or inference (batched
    generation). pretrain unless given."""
    sequence_parallel: Axis[StrictBool] | None = None
    """With tp above 1, cut the sequence between the tensor-parallel parts. true unless given."""
    compile: Axis[StrictBool] | None = None
    """Compile layers with torch.compile. false unless given."""
    routing: Axis[records.Routing] | None = None
    """dropless: experts take what the router sends them; balanced: every expert takes equally many
    rows (capacity factor 1), padded or dropped. dropless unless given."""
    balancing_loss: Axis[Annotated[float, Field(ge=0, allow_inf_nan=False)]] | None = None
    """Coefficient of the router's load-balancing loss. 0 unless given."""
    lora_rank: Axis[StrictPositive] | None = None
    """Rank of the adapters of workload lora. 16 unless given."""
    generated_tokens: Axis[StrictPositive] | None = None
    """Tokens that each sequence of workload inference generates; its prompt is the rest of the
    model's sequence_length. 128 unless given."""


#: what options are where neither the sweep nor the block says; those not here must be given
OPTION_DEFAULTS: Mapping[str, Any] = {
    "backend": "auto",
    "workload": "pretrain",
    "sequence_parallel": True,
    "compile": False,
    "routing": "dropless",
    "balancing_loss": 0.0,
    "lora_rank": 16,
    "generated_tokens": 128,
}


class Block(TrainingAxes):
    """One block of a sweep's matrix: the product of its axes, for each platform and model."""

    platforms: Axis[str] | None = None
    """Those of the sweep's platforms that the block is for; all unless given."""
    models: Axis[str]
    """Names of models."""
    gpus: Axis[StrictPositive] | None = None
    """GPUs to run on; all of the platform's unless given."""
    tp: Axis[StrictPositive] = 1
    """Tensor-parallel degree."""
    pp: Axis[StrictPositive] | Literal["rest"] = 1
    """Pipeline-parallel degree; rest is what the other degrees leave of the GPUs."""
    dp: Axis[StrictPositive] | Literal["rest"] = "rest"
    """Data-parallel degree; rest is what the other degrees leave of the GPUs."""
    ep: Axis[StrictPositive] = 1
    """Expert-parallel degree: experts are spread over ep of the dp replicas."""
    virtual_stages: Axis[StrictPositive] = 1
    """Chunks of the model on each pipeline rank; above 1 the schedule is interleaved."""
    stage_layers: Annotated[tuple[StrictPositive, ...], Field(strict=False)] = ()
    """Transformer layers of each stage, first to last; spread evenly unless given."""
    gpu_order: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(strict=False)] = ()
    """The node's GPU of each local rank; local rank i uses GPU i unless given."""

    @model_validator(mode="after")
    def _one_rest(self) -> Block:
        if self.pp == "rest" and self.dp == "rest":
            raise ValueError("only one of pp and dp can be rest; give the other a number")
        return self


class Exclusion(TrainingAxes):
    """Leaves out every cell that has all of these values; a list means any of its values."""

    platform: Axis[str] | None = None
    """Name of a platform."""
    model: Axis[str] | None = None
    """Name of a model."""
    tp: Axis[StrictPositive] | None = None
    """Tensor-parallel degree."""
    pp: Axis[StrictPositive] | None = None
    """Pipeline-parallel degree, rest resolved."""
    dp: Axis[StrictPositive] | None = None
    """Data-parallel degree, rest resolved."""
    ep: Axis[StrictPositive] | None = None
    """Expert-parallel degree."""


class Protocol(Strict):
    """How each run of a sweep is measured."""

    warmup_steps: Annotated[int, Field(ge=1)]
    """Steps before measuring starts."""
    measured_steps: PositiveInt
    """Steps measured."""
    idle_baseline_s: Annotated[float, Field(ge=0)]
    """Seconds of idling, watched, before training starts."""
    sample_rate_hz: Annotated[float, Field(ge=1, le=50)]
    """Rate of GPU samples."""


class SweepSpec(Strict):
    """``config/sweeps/<name>.yaml``: a matrix of cells with rules."""

    description: Text
    """One line on what the sweep is for."""
    platforms: tuple[str, ...] = Field(min_length=1, strict=False)
    """Names of platforms; a sweep over several makes one view for each."""
    repeats: PositiveInt
    """Runs of each cell."""
    data: str
    """Name of the data."""
    protocol: Protocol
    """How each run is measured."""
    training: TrainingAxes
    """Training options that every block inherits."""
    matrix: tuple[Block, ...] = Field(min_length=1, strict=False)
    """The blocks whose cells make up the sweep."""
    exclude: tuple[Exclusion, ...] = Field(default=(), strict=False)
    """Cells to leave out."""

    @model_validator(mode="after")
    def _options_complete(self) -> SweepSpec:
        for number, block in enumerate(self.matrix, start=1):
            for option in TrainingAxes.model_fields:
                given = (getattr(block, option), getattr(self.training, option))
                if given == (None, None) and option not in OPTION_DEFAULTS:
                    raise ValueError(
                        f"{option} is given neither in training nor in block {number} of matrix"
                    )
        return self
