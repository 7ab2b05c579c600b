"""Collectives and optimiser steps as the engine does them, each timed alone on all ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from research.plain import PLAIN
from workflow_lib.records.degrees import Degrees
from workflow_lib.trainers.native import mesh
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.optimizer import adamw, clip_gradients, local_gradient
from workflow_lib.trainers.native.sharding import Sharding

#: bytes of a weight that workflow_lib/projection/step_terms.py counts for an optimiser without
#: replicas: weight and gradient once, master weight and two moments read and written
OPTIMISER_BYTES = 26
#: [out, in] of the matrices of a layer of Llama 3 8B (arXiv 2407.21783, table 3): queries, keys,
#: values, their output, gate, up, down
_MATRICES = (
    *((4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096)),
    *((14336, 4096), (14336, 4096), (4096, 14336)),
)
#: weights of its two norms
_VECTORS = (4096, 4096)
_LAYER = sum(rows * columns for rows, columns in _MATRICES) + sum(_VECTORS)
#: of the products before a measurement, [size, size] in bf16; each takes about 1.5 ms on an H100
_PRODUCT_SIZE = 8192
#: products during which the host queues all repeats, as a step's passes hide it in training
_PRODUCTS_OF_COLLECTIVES, _PRODUCTS_OF_OPTIMISER = 8, 160

#: bytes that a rank sends, and receives, for a message of 1 B over n ranks. Rings pass (n − 1)/n of
#: it on, an all-reduce twice (Patarasuk and Yuan 2009); of an all-to-all each rank keeps 1/n.
SHARES: Mapping[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "send/recv": lambda n: 1.0,
}

Work = Callable[[], object]


def collectives(
    device: torch.device, sizes_bytes: list[int], repeats: int, warmups: int
) -> Iterator[dict[str, Any]]:
    """Time each collective of each size in groups of 2, 4, … neighbouring ranks. All groups of a
    size exchange at once. The seconds are those of the slowest rank in each repeat.
    """
    hold = _holding(device, _PRODUCTS_OF_COLLECTIVES)
    for ranks in _group_sizes(dist.get_world_size()):
        group, _ = dist.new_subgroups(ranks)
        for message_bytes in sizes_bytes:
            exchange = exchanges(group, message_bytes, device)
            for collective in SHARES:
                times = _timed([exchange[collective]], device, repeats, warmups, hold)
                yield {
                    "part": "collective",
                    "collective": collective,
                    "ranks": ranks,
                    "message_bytes": message_bytes,
                    "received_bytes": SHARES[collective](ranks) * message_bytes,
                    "repeats_s": times[0],
                }
            del exchange  # before the next size needs memory


def optimiser(
    device: torch.device, sizes: list[int], repeats: int, warmups: int
) -> Iterator[dict[str, Any]]:
    """Time the clipping of gradients and the optimiser's step for about so many weights a rank.

    Weights are held as the torch backend holds them: in fp32, in units of FSDP2. Gradients are in
    fp32, too. The seconds are those of the slowest rank in each repeat.
    """
    degrees = Degrees(dp=dist.get_world_size())
    placed = mesh.create(degrees, device)
    # Replicas each hold all weights and all states.
    training = replace(
        PLAIN, global_batch_size=degrees.dp, zero_stage=0, overlap=True, backend="torch"
    )
    hold = _holding(device, _PRODUCTS_OF_OPTIMISER)
    for size in sizes:
        weights = list(_sharded(size, device, Sharding(placed, training)).parameters())
        for weight in weights:
            weight.grad = torch.zeros_like(weight)
            gradient = local_gradient(weight)
            assert gradient is not None
            gradient.normal_()
        stepping = adamw(weights, training, device)
        clip_s, step_s = _timed(
            [lambda held=weights: clip_gradients(held, placed), stepping.step],
            device,
            repeats,
            warmups,
            hold,
        )
        parameters = sum(weight.numel() for weight in weights)
        yield {
            "part": "optimiser",
            "parameters": parameters,
            "tensors": len(weights),
            "bytes": OPTIMISER_BYTES * parameters,
            "clip_s": clip_s,
            "step_s": step_s,
        }
        del weights, weight, gradient, stepping  # before the next size needs memory


def exchanges(group: Any, message_bytes: int, device: Any) -> Mapping[str, Work]:
    """Each collective of SHARES over the ranks of a process group, on a message in bf16."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    whole = torch.zeros(message_bytes // 2, device=device, dtype=torch.bfloat16)
    other, part = torch.zeros_like(whole), torch.zeros_like(whole[: whole.numel() // ranks])
    following, preceding = (
        dist.get_global_rank(group, (rank + step) % ranks) for step in (1, ranks - 1)
    )

    def shift() -> None:
        """Everybody to the next rank, around."""
        sending = dist.P2POp(dist.isend, whole, following, group)
        receiving = dist.P2POp(dist.irecv, other, preceding, group)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()

    return {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all-to-all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send/recv": shift,
    }


def layer_shapes(parameters: int) -> list[list[tuple[int, ...]]]:
    """The shapes of the weights of layers that have about so many parameters together.

    They are layers of Llama 3 8B. Their rows are cut as replicas cut them, so that the number of
    layers is whole.
    """
    layers = math.ceil(parameters / _LAYER)
    share = parameters / (layers * _LAYER)
    whole = [*_MATRICES, *((size,) for size in _VECTORS)]
    cut = [(max(1, round(share * rows)), *others) for rows, *others in whole]
    return [cut] * layers


class _Layer(nn.Module):
    """Weights of one layer, which are only held."""

    def __init__(self, shapes: list[tuple[int, ...]], device: torch.device) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.empty(shape, device=device).normal_(std=0.02)) for shape in shapes
        )


def _sharded(parameters: int, device: torch.device, sharding: Sharding) -> nn.Module:
    """Layers as units of FSDP2, one after another, as the engine builds them."""
    root = nn.Sequential()  # FSDP2 refuses containers without a forward pass
    for shapes in layer_shapes(parameters):
        layer = _Layer(shapes, device)
        sharding.apply(layer)
        root.append(layer)
    sharding.finish(root)
    return root


def _group_sizes(ranks: int) -> list[int]:
    """The powers of two from 2 that divide the number of ranks."""
    powers = [2**power for power in range(1, ranks.bit_length())]
    return [power for power in powers if ranks % power == 0]


def _holding(device: torch.device, products: int) -> Work:
    """What keeps a GPU busy for some products of matrices. A CPU queues nothing, and needs none."""
    if not on_gpu(device):
        return lambda: None
    matrix = torch.randn(_PRODUCT_SIZE, _PRODUCT_SIZE, device=device, dtype=torch.bfloat16)
    output = torch.empty_like(matrix)

    def hold() -> None:
        for _ in range(products):
            torch.mm(matrix, matrix, out=output)

    return hold


def _timed(
    works: list[Work], device: torch.device, repeats: int, warmups: int, hold: Work
) -> list[list[float]]:
    """Do several works in turn; returns for each the seconds of each repeat on the slowest rank."""
    clock = _gpu_times if on_gpu(device) else _cpu_times
    mine = torch.tensor(clock(works, repeats, warmups, hold), dtype=torch.float64, device=device)
    dist.all_reduce(mine, op=dist.ReduceOp.MAX)
    return [[float(f"{seconds:.5g}") for seconds in each] for each in mine.tolist()]


def _gpu_times(works: list[Work], repeats: int, warmups: int, hold: Work) -> list[list[float]]:
    """Seconds between events on the GPU: [works, repeats]."""
    for work in works:  # the first call of a collective connects ranks
        work()
    torch.cuda.synchronize()
    hold()
    for _ in range(warmups):
        for work in works:
            work()
    events = [[_event()]]
    for _ in range(repeats):
        events.append([events[-1][-1]])
        for work in works:
            work()
            events[-1].append(_event())
    torch.cuda.synchronize()
    return [
        [event[number].elapsed_time(event[number + 1]) / 1e3 for event in events[1:]]
        for number in range(len(works))
    ]


def _event() -> Any:
    """An event that has been recorded on the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _cpu_times(works: list[Work], repeats: int, warmups: int, hold: Work) -> list[list[float]]:
    """Seconds of each call: [works, repeats]."""
    times: list[list[float]] = [[] for _ in works]
    for repeat in range(-warmups, repeats):
        for number, work in enumerate(works):
            started = time.perf_counter()
            work()
            if repeat >= 0:
                times[number].append(time.perf_counter() - started)
    return times
