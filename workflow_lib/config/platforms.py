"""``config/platforms``: how jobs start, and the hardware of their nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from workflow_lib import gpu_models, safety
from workflow_lib.config import sbatch
from workflow_lib.config.fields import (
    GpusOfNode,
    PathText,
    PositiveFloat,
    PositiveInt,
    Ranks,
    Strict,
    Text,
    literal,
)
from workflow_lib.config.sbatch import (
    HostExpression,
    OptionName,
    OptionValue,
    SchedulerConstraint,
    SchedulerWord,
)
from workflow_lib.records import bounds
from workflow_lib.records.cell import TelemetrySource

#: a given peak may differ by this share from the known one, because of rounding
_PEAKS_AGREE = 0.005

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Container(Strict):
    """The container image that a job's processes run in."""

    runtime: Literal["apptainer", "pyxis"]
    """The program that starts the container."""
    image: PathText
    """Path or address of the image."""
    mounts: tuple[PathText, ...] = Field(default=(), strict=False)
    """Directories of the host that the container sees under the same path, besides the checkout."""


class Network(Strict):
    """The network between nodes."""

    kind: Literal["infiniband", "ethernet", "none"]
    """The fabric between nodes."""
    adapters_per_node: Annotated[int, Field(ge=0, le=bounds.GPUS_OF_NODE.most)]
    """Network adapters in a node."""
    gbit_per_s_per_adapter: Annotated[float, Field(ge=0, le=1e6)]
    """Rate of one adapter, Gb/s."""

    @property
    def gbit_per_s(self) -> float:
        """Rate of a node's adapters together, Gb/s."""
        return self.adapters_per_node * self.gbit_per_s_per_adapter


class Platform(Strict):
    """``config/platforms/<name>.yaml``: a partition of a cluster, or one machine."""

    description: Text
    """One line on the machine."""
    scheduler: Literal["slurm", "local"]
    """How jobs start: through Slurm, or on this machine."""

    partition: SchedulerWord | None = None
    """Slurm partition; required with Slurm."""
    account: SchedulerWord | None = None
    """Slurm account, if the site requires one."""
    qos: SchedulerWord | None = None
    """Slurm quality of service."""
    constraint: SchedulerConstraint | None = None
    """Slurm features that the nodes must have."""
    reservation: SchedulerWord | None = None
    """Slurm reservation."""
    exclude_nodes: tuple[HostExpression, ...] = Field(default=(), strict=False)
    """Nodes that jobs must not use, as Slurm writes them: node7, or node[1-3]."""
    requeue: bool = True
    """Whether Slurm may start a job again that a node failure or a preemption ended. The run then
    starts anew and keeps the files of the first attempt."""
    sbatch_options: Mapping[OptionName, OptionValue] = {}
    """Further sbatch options that the site requires, by their long name, such as wckey; true for an
    option without a value. Options that have a key in this file, or that the workflow relies on,
    are refused."""
    gpu_request: Literal["gpus-per-node", "gres"] = "gpus-per-node"
    """How GPUs are requested: --gpus-per-node=<type>:<n>, or --gres=gpu:<type>:<n>."""
    gpu_type: SchedulerWord | None = None
    """The GPU type in the site's Slurm; null requests GPUs without a type."""
    exclusive: bool = True
    """Whether to request whole nodes, so that other jobs do not disturb the measurement."""
    cpus_per_gpu: PositiveInt
    """CPUs for each rank."""
    memory_per_node_gb: PositiveInt
    """Host memory of a node; requested only if nodes are not exclusive."""
    time_limit_max_min: PositiveInt
    """The longest time limit that the partition allows, in minutes."""
    time_limit_margin: Annotated[float, Field(ge=1, le=1e6)] = 2.0
    """A job's time limit is this number times the longest that its duration is believed to be, and
    at most time_limit_max_min, which it is without an estimate."""

    nodes: Ranks
    """Nodes of the platform that a cell may use."""
    gpus_per_node: GpusOfNode
    """GPUs in a node; on MI250, dies."""
    gpus_per_package: GpusOfNode = 1
    """GPUs that share one package and its power sensor: 2 on MI250."""
    gpu: Text | None
    """The model of GPU: a key of workflow_lib/gpu_models.py (H100, H100 PCIe, H100 NVL, H200, H200
    NVL, GH200, A100 SXM, A100 PCIe, MI250), or whole words of the name that the driver reports;
    null if any model will do."""
    gpu_memory_gb: PositiveFloat | None
    """Memory of one GPU, 10⁹ bytes; null if not known beforehand."""
    peak_bf16_tflops: PositiveFloat | None = None
    """Dense bf16 peak of one GPU, TFLOP/s, for a model that is not in gpu_models.py. Without a peak
    no MFU is computed."""
    peak_fp32_tflops: PositiveFloat | None = None
    """The same in fp32."""
    peak_fp8_tflops: PositiveFloat | None = None
    """The same in fp8. If gpu names a model without a known fp8 peak, cells in fp8 cannot run."""
    memory_bandwidth_gb_per_s: PositiveFloat | None = None
    """Memory bandwidth of one GPU, 10⁹ bytes/s; without it the time of inference is not
    estimated."""
    link_gb_per_s: PositiveFloat | None = None
    """Peak of all links of one GPU to others of its node, in one direction, 10⁹ bytes/s; without it
    no share of this peak is reported."""
    power_limit_w: Annotated[float, Field(ge=1e-3, le=1e9)] | None
    """Power limit of one package, W."""
    idle_temperature_c: Annotated[float, Field(gt=0, le=1000)] | None = None
    """Core temperature of a GPU after long idling, °C; a cool-down is relative to it."""
    network: Network
    """The network between nodes."""
    emulated: Text | None = None
    """What of the nodes or of the links between GPUs is emulated, in words: several nodes on one
    host, or a fabric that no hardware has. Everything that is made of its runs says so, and
    projections leave them out. Where it is not given, an environment with NCCL_P2P_DISABLE counts
    as emulated."""
    airflow: tuple[Literal["front", "rear", "unknown"], ...] = Field(strict=False)
    """The place of each GPU of a node in the air stream, by the GPU's index."""
    gpu_settings: Literal["forbidden", "allowed"] = "forbidden"
    """Whether jobs may set power limits and lock clocks of their GPUs. They restore them at their
    end. The driver must permit it, too."""
    telemetry: TelemetrySource
    """The source of GPU readings; auto takes real GPUs if there are enough, else a simulation."""

    python: PathText
    """The Python interpreter of jobs: a path in the checkout, an absolute path, or a name on the
    PATH. `.venv/bin/python` is that of `make`'s environment, and follows `make VENV=DIRECTORY`."""
    modules: tuple[Text, ...] = Field(default=(), strict=False)
    """Environment modules to load."""
    container: Container | None = None
    """The container image that processes run in."""
    environment: Mapping[VariableName, str] = {}
    """Environment variables to set. They are part of the cell: after a change, cells run anew."""
    expected_mfu: Annotated[float, Field(gt=0, le=1)] = 0.4
    """The share of the peak that training is assumed to reach where no step time is projected."""

    def profile(self, name: str) -> str:
        """The name of Snakemake's profile for this platform, which is called ``name``."""
        return f"slurm_{name}" if self.scheduler == "slurm" else name

    @model_validator(mode="after")
    def _agrees(self) -> Platform:
        if self.scheduler == "slurm" and self.partition is None:
            raise ValueError("a platform with scheduler slurm needs a partition")
        if self.scheduler == "local" and self.nodes != 1:
            raise ValueError(f"a platform with scheduler local has 1 node, not {self.nodes}")
        if self.gpu and (key := gpu_models.other_case(self.gpu)):
            raise ValueError(f"gpu {self.gpu} is called {key} here: write gpu: {key}")
        if several := gpu_models.ambiguous(self.gpu):
            raise ValueError(f"gpu {self.gpu} may be {' or '.join(several)}: say which")
        for precision, given in (
            ("bf16", self.peak_bf16_tflops),
            ("fp32", self.peak_fp32_tflops),
            ("fp8", self.peak_fp8_tflops),
        ):
            peak = gpu_models.peak_flops_per_s(gpu_models.named(self.gpu), precision)
            if given and peak and abs(given * 1e12 / peak - 1) > _PEAKS_AGREE:
                raise ValueError(
                    f"peak_{precision}_tflops is {given:g}, but the dense peak of {self.gpu} is "
                    f"{peak / 1e12:g}: leave it out, or name another gpu"
                )
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

    @field_validator("sbatch_options")
    @classmethod
    def _leaves_the_workflow_its_own(
        cls, options: Mapping[str, str | int]
    ) -> Mapping[str, str | int]:
        if refusal := sbatch.refusal(options):
            raise ValueError(refusal)
        return options

    @field_validator("environment")
    @classmethod
    def _text_and_no_secrets(cls, environment: Mapping[str, str]) -> Mapping[str, str]:
        for name, value in environment.items():
            if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
                raise ValueError(f"the value of {name} holds a null byte, or is not text in UTF-8")
            try:
                literal(value)
            except ValueError as error:
                raise ValueError(f"the value of {name}: {error}") from None
            if safety.names_secret(name):
                raise ValueError(
                    f"{name} looks like a secret, which must not lie in a file: export it in your "
                    "shell before submitting; jobs inherit it"
                )
            if safety.holds_password(value):
                raise ValueError(
                    f"the value of {name} holds an address with a password in it, which must not "
                    "lie in a file: export it in your shell before submitting; jobs inherit it"
                )
        return environment
