"""DeepSpeed as the engine: ZeRO-0 to 3 without stages, its 1F1B pipeline with ZeRO-0 and 1.

``workflow_lib.trainers.capabilities``, which the planner reads, lists what it cannot run.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workflow_lib.records.cell import Cell
from workflow_lib.records.training import SUMS, Precisions, Training
from workflow_lib.state_memory import bucket_parameters
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.mesh import Mesh
from workflow_lib.trainers.native.model import (
    Decoder,
    Loss,
    Part,
    held_parameters,
    parts,
    stage_bounds,
)
from workflow_lib.trainers.native.optimizer import (
    MAXIMUM_GRADIENT_NORM,
    NonfiniteGradient,
    adamw,
    clip_gradients,
)
from workflow_lib.trainers.native.precisions import DTYPES, MOMENTS, named
from workflow_lib.trainers.native.weights import Weights, expert_group_name

Batch = tuple[Tensor, Tensor]

#: attributes by optimiser: BF16_Optimizer (ZeRO-1 in bf16), DeepSpeedZeroOptimizer (ZeRO-1 in fp32,
#: ZeRO-2), DeepSpeedZeroOptimizer_Stage3. Without ZeRO there is only AdamW
_MASTER_WEIGHTS = (
    "fp32_groups_flat_partition",
    "single_partition_of_fp32_groups",
    "fp32_partitioned_groups_flat",
)
_GATHERED = ("bf16_groups_flat", "bit16_groups_flat", "fp16_partitioned_groups_flat")
#: the second optimiser makes its sums within a step, and only gives their precision
_SUMS = ("fp32_groups_gradients_flat", "gradient_accumulation_dtype", "grad_partitions_flat_buffer")


def import_deepspeed(device: torch.device) -> Any:
    """Import DeepSpeed so that it neither guesses the device nor compiles anything on a CPU."""
    if not on_gpu(device):
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        # Else DeepSpeed starts numactl to count CPUs, in every step of ZeRO-3. That fails where the
        # PATH has a directory that may not be read.
        os.environ.setdefault("LOCAL_SIZE", os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # DeepSpeed still calls collectives by names that torch has renamed.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    if not on_gpu(device):
        # On a CPU DeepSpeed would build a shared-memory collective with g++, which takes a minute,
        # and crashes without a compiler; gloo does the same work. The name deepspeed.comm.torch is
        # shadowed by torch itself, hence sys.modules.
        sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    # DeepSpeed asks whether AdamW is its own Muon, whose module starts torch's compiler: a third of
    # a small run's start. Nothing else is compiled through this name, and nothing here uses Muon.
    deepspeed.runtime.compiler.compile = lambda *_, **__: lambda function: function
    return deepspeed


class DeepSpeedEngine:
    """A cell's model on this rank, stepped by DeepSpeed."""

    def __init__(self, cell: Cell, mesh: Mesh) -> None:
        """Build and place the model. The default process group must exist already."""
        deepspeed = import_deepspeed(mesh.device)
        deepspeed.init_distributed(
            dist_backend=dist.get_backend(), auto_mpi_discovery=False, verbose=False
        )
        self._mesh = mesh
        self._micro_batches = cell.training.micro_batches(mesh.degrees.dp)
        dtype = DTYPES[cell.training.held_precision]
        lora = cell.training.workload == "lora"
        weights = Weights(mesh, cell.training.seed, dtype, adapters=dtype if lora else None)
        sequence = parts(cell.model, weights, cell.training)
        configuration = settings(cell.training, mesh.degrees.dp, cell.model.hidden_size)
        with contextlib.redirect_stdout(io.StringIO()):  # it prints each layer and group
            if mesh.degrees.pp > 1:
                module = _pipeline(sequence, mesh, cell.model.layers, tie=not lora)
                mpu = module.mpu()
            else:
                mpu = _ModelParallelUnit(mesh)
                module = _whole(sequence, mesh, configuration, mpu)
            self.parameters = held_parameters(module)
            configuration["zero_optimization"].update(buckets(module, cell.training.zero_stage))
            self._spread_experts(module)
            self._adamw = adamw(_parameter_groups(module), cell.training, mesh.device)
            self._engine = deepspeed.initialize(
                model=module,
                optimizer=self._adamw,
                config=configuration,
                mpu=None if mesh.degrees.pp > 1 else mpu,
                dist_init_required=False,
            )[0]
        self._plain_norm: Tensor | None = None

        def clip() -> None:
            self._plain_norm = clip_gradients(module.parameters(), mesh)

        # With a plain fp32 optimiser DeepSpeed counts only the gradients of the first stage.
        self._engine.clip_fp32_gradients = clip

    def train_step(self, batches: Sequence[Batch]) -> float:
        """Do one optimiser step over this replica's micro-batches.

        Returns the loss of the global batch in nats, on every rank. Raises NonfiniteGradient if the
        loss is finite and the gradient is not.
        """
        if self._mesh.degrees.pp > 1:
            loss = self._engine.train_batch(iter(batches))
        else:
            loss = self._accumulate(batches)
        value = float(loss)
        plain = self._plain_norm
        skipped = self._engine.skipped_steps or (plain is not None and not plain.isfinite())
        if skipped and math.isfinite(value):
            step = self._engine.global_steps - 1
            raise NonfiniteGradient(
                f"the gradient of step {step} is not finite (its loss is {value})"
            )
        return value

    def _accumulate(self, batches: Sequence[Batch]) -> Tensor:
        total = torch.zeros((), device=self._mesh.device)
        for tokens, targets in batches:
            loss = self._engine(tokens, targets)
            self._engine.backward(loss)
            self._engine.step()
            total += loss.detach().float()
        total /= self._micro_batches * self._mesh.degrees.dp
        dist.all_reduce(total, group=self._mesh.dp_group)
        return total

    def gradient_norm(self) -> float:
        """The norm of the whole model's gradient in the last step, before it was clipped."""
        if self._plain_norm is not None:
            return float(self._plain_norm)
        return float(self._engine.get_global_grad_norm())

    def modules(self) -> Sequence[nn.Module]:
        """The modules of the model that this rank holds."""
        return [self._engine.module]

    def precisions(self) -> Precisions:
        """The precisions of what DeepSpeed holds and exchanges; moments are null before the first
        step."""
        return _precisions_of(self._engine, self._adamw)

    def _spread_experts(self, module: nn.Module) -> None:
        """Tell DeepSpeed which ranks share experts, and that the model has some."""
        from deepspeed.moe.layer import MoE
        from deepspeed.utils import groups

        mesh = self._mesh
        groups.expert_tensor_parallel_world_size = mesh.degrees.tp
        if mesh.expert_group is None or mesh.expert_dp_group is None:
            return
        name = expert_group_name(mesh)
        for registry, ranks, group in (
            (groups._EXPERT_PARALLEL_GROUP, groups._EXPERT_PARALLEL_GROUP_RANKS, mesh.expert_group),
            (
                groups._EXPERT_DATA_PARALLEL_GROUP,
                groups._EXPERT_DATA_PARALLEL_GROUP_RANKS,
                mesh.expert_dp_group,
            ),
        ):
            registry[name] = group
            ranks[name] = dist.get_process_group_ranks(group)

        experts = [p for p in module.parameters() if not getattr(p, "allreduce", True)]
        if not any(expert.requires_grad for expert in experts):
            # DeepSpeed requires experts to train if there are any, and need not know of these. This
            # mark only keeps it from overwriting them with those of the first replica.
            for expert in experts:
                expert.ds_optim_param = True  # type: ignore[attr-defined]
            return

        class Marker(MoE):  # type: ignore[misc]
            """A module without weights: DeepSpeed looks for its own layer to know that experts
            exist."""

            def __init__(self) -> None:
                nn.Module.__init__(self)
                self.num_experts = 0

            def set_deepspeed_parallelism(self, *_: object) -> None:
                """Do nothing: the groups exist already."""

        module.add_module("expert_marker", Marker())


class _ModelParallelUnit:
    """The answers to DeepSpeed's questions about parallelism if there is no pipeline."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def get_model_parallel_rank(self) -> int:
        return self._mesh.place.tp

    def get_model_parallel_world_size(self) -> int:
        return self._mesh.degrees.tp

    def get_model_parallel_group(self) -> dist.ProcessGroup | None:
        return self._mesh.tp_group

    get_tensor_model_parallel_rank = get_model_parallel_rank
    get_tensor_model_parallel_world_size = get_model_parallel_world_size
    get_tensor_model_parallel_group = get_model_parallel_group

    def get_data_parallel_rank(self) -> int:
        return self._mesh.place.dp

    def get_data_parallel_world_size(self) -> int:
        return self._mesh.degrees.dp

    def get_data_parallel_group(self) -> dist.ProcessGroup | None:
        return self._mesh.dp_group

    def get_pipeline_model_parallel_world_size(self) -> int:
        return 1


def _whole(
    sequence: list[Part], mesh: Mesh, configuration: dict[str, Any], mpu: object
) -> nn.Module:
    """Build the whole model; with ZeRO-3, each weight is cut as soon as it is drawn."""
    if configuration["zero_optimization"]["stage"] < 3:
        return Decoder(sequence, mesh.tp_group)
    import deepspeed

    # The configuration gives the precision. Init's own ``dtype`` would count only where the
    # accelerator supports fp16; elsewhere weights would be bf16 in any case.
    with deepspeed.zero.Init(
        data_parallel_group=mesh.dp_group, mpu=mpu, config_dict_or_path=configuration
    ):
        return Decoder(sequence, mesh.tp_group)


def _pipeline(sequence: list[Part], mesh: Mesh, layers: int, tie: bool) -> Any:
    """Build this rank's stage of a model of so many transformer layers.

    ``tie`` makes DeepSpeed sum the gradients of weights that two stages share; a frozen model has
    none.
    """
    from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
    from deepspeed.runtime.pipe.topology import PipeModelDataParallelTopology

    begins = stage_bounds(sequence, mesh.degrees.layers_of_stages(layers))

    class Stages(PipelineModule):  # type: ignore[misc]
        """A pipeline whose stages the cell gives; DeepSpeed's own methods of division accept no
        list."""

        def _partition_layers(self, method: str = "") -> None:
            self.parts = begins
            self._set_bounds(begins[mesh.place.pp], begins[mesh.place.pp + 1])

    specifications = [
        TiedLayerSpec(part.tied, part.kind, *part.arguments)
        if part.tied and tie
        else LayerSpec(part.kind, *part.arguments)
        for part in sequence
    ]
    topology = PipeModelDataParallelTopology(
        num_pp=mesh.degrees.pp, num_mp=mesh.degrees.tp, num_dp=mesh.degrees.dp
    )
    with torch.no_grad():  # it broadcasts the tied embedding, which autograd must not record
        return Stages(specifications, topology=topology, loss_fn=Loss(mesh.tp_group))


def _parameter_groups(module: nn.Module) -> list[dict[str, Any]]:
    """Group the trained weights as DeepSpeed expects: spread experts apart from the rest."""
    dense: list[nn.Parameter] = []
    experts: list[Any] = []
    for parameter in module.parameters():
        if parameter.requires_grad:
            (dense if getattr(parameter, "allreduce", True) else experts).append(parameter)
    groups: list[dict[str, Any]] = [{"params": dense, "name": "dense"}] if dense else []
    if experts:
        groups.append({"params": experts, "name": experts[0].group_name, "moe": True})
    return groups


def settings(training: Training, dp: int, hidden_size: int) -> dict[str, Any]:
    """DeepSpeed's configuration, without the sizes of buckets."""
    bf16 = training.precision == "bf16"
    # In bf16, ZeRO-0 is another optimiser path, which sums micro-batches in bf16. ZeRO-1 over one
    # replica cuts nothing and is equal to ZeRO-0. Over several replicas it would not be, so
    # capabilities.py refuses that.
    stage = 1 if bf16 and training.zero_stage == 0 else training.zero_stage
    return {
        "train_micro_batch_size_per_gpu": training.micro_batch_size,
        "gradient_accumulation_steps": training.micro_batches(dp),
        "gradient_clipping": MAXIMUM_GRADIENT_NORM,
        "steps_per_print": None,
        "bf16": {"enabled": bf16},
        "data_types": {"grad_accum_dtype": SUMS},
        # The precision in which gradients are reduced over replicas. By default DeepSpeed takes
        # bf16 for a bf16 model, even if the gradients are sums in fp32.
        "communication_data_type": SUMS,
        # With sequence parallelism these are off: a stage would send each tensor-parallel rank's
        # part of its output, as if the output were equal on all of them.
        "pipeline": dict.fromkeys(
            ("pipe_partitioned", "grad_partitioned"), not training.sequence_parallel
        ),
        "zero_optimization": {
            "stage": stage,
            "overlap_comm": training.overlap,
            # Norms stay whole, matrices are cut: the threshold is ten vectors, as in Hugging Face's
            # integration.
            "stage3_param_persistence_threshold": 10 * hidden_size,
        },
    }


def buckets(module: nn.Module, zero_stage: int) -> dict[str, int]:
    """Sizes of DeepSpeed's buckets, in elements."""
    trained = [p for p in module.parameters() if p.requires_grad]
    sizes = [int(getattr(p, "ds_numel", p.numel())) for p in trained]
    size = int(bucket_parameters(zero_stage, sum(sizes), max(sizes, default=0)))
    return {"reduce_bucket_size": size, "allgather_bucket_size": size}


def _precisions_of(engine: Any, adamw: torch.optim.AdamW) -> Precisions:
    """The precisions of an engine and its AdamW; moments are null before the first step."""
    optimizer = engine.optimizer
    weights = list(engine.module.parameters())
    trained = [weight.dtype for weight in weights if weight.requires_grad]
    moments = (state[name] for state in adamw.state.values() for name in MOMENTS)
    return Precisions(
        # In ZeRO-3 the part of a weight that a rank keeps is an attribute of it.
        weights=named(part.dtype for w in weights for part in (w, getattr(w, "ds_tensor", w))),
        gradients=named(_held_as(optimizer, _SUMS) or trained),
        # The engine reduces without ZeRO, in pipelines and for BF16_Optimizer; otherwise the
        # buckets do.
        reduction=named([engine.communication_data_type, *getattr(optimizer, "ipg_buckets", ())]),
        gathering=named(_held_as(optimizer, _GATHERED)),
        master_weights=named(_held_as(optimizer, _MASTER_WEIGHTS) or trained),
        moments=named(moment.dtype for moment in moments),
    )


def _held_as(optimizer: object, names: tuple[str, ...]) -> list[torch.dtype]:
    """The precisions of an optimiser's attributes with these names: tensors, or precisions
    themselves."""
    dtypes = []
    for value in (getattr(optimizer, name) for name in names if hasattr(optimizer, name)):
        several = [value] if isinstance(value, Tensor | torch.dtype) else value
        dtypes += [part if isinstance(part, torch.dtype) else part.dtype for part in several]
    return dtypes
