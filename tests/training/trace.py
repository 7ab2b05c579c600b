"""Records in which order two ranks compute and communicate, with and without overlap.

For a cell each rank returns lists of [what, of what], in the order in which it happened during one
step. See ``ranks`` for the arguments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, schedules

from tests.training.ranks import on_every_rank
from workflow_lib.records.cell import Cell
from workflow_lib.trainers.native import expert_exchange, sharding
from workflow_lib.trainers.native import mesh as meshes
from workflow_lib.trainers.native.data import SyntheticTokens, step_batches
from workflow_lib.trainers.native.model import TransformerLayer
from workflow_lib.trainers.native.torch_engine import TorchEngine

Events = list[tuple[str, str]]
EVENTS: Events = []


def told(function: Callable[..., Any], tell: Callable[..., None]) -> Callable[..., Any]:
    """The function, which tells before it is called and is given its result to name."""

    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        tell(result, *arguments)
        return result

    return wrapped


def watch(events: Events) -> None:
    """Have the pipeline's sends and receives, its passes, and the lone collectives recorded."""
    posted: dict[int, str] = {}

    def post(works: list[Any], operations: list[Any], *_: object) -> None:
        if works:
            name = str(len(posted))
            posted.update({id(work): name for work in works})
            keep.extend(works)
            events.append(("post", name))

    def wait(_: object, works: list[Any]) -> None:
        events.extend(("wait", name) for name in sorted({posted[id(work)] for work in works}))

    keep: list[Any] = []  # so that no two have one id
    schedules._batch_p2p = told(schedules._batch_p2p, post)
    schedules._wait_batch_p2p = told(schedules._wait_batch_p2p, wait)
    PipelineStage.forward_one_chunk = told(
        PipelineStage.forward_one_chunk, lambda _, stage, index, *__: events.append(("pass", "F"))
    )
    PipelineStage.backward_one_chunk = told(
        PipelineStage.backward_one_chunk, lambda _, stage, index, *__: events.append(("pass", "B"))
    )
    watch_experts(events)
    for kind in (sharding.AloneAllGather, sharding.AloneReduceScatter, sharding.AfterAllReduce):
        kind.__call__ = told(  # type: ignore[method-assign]
            kind.__call__, lambda _, self, *__: events.append(("alone", type(self).__name__))
        )


def watch_experts(events: Events) -> None:
    """Have exchanges of rows that run beside products recorded, and the gates of experts."""
    start = expert_exchange.start_exchange
    count = itertools.count()

    def started(*arguments: Any) -> Callable[[], Any]:
        finish, name = start(*arguments), str(next(count))
        events.append(("start", name))

        def finished() -> Any:
            events.append(("finish", name))
            return finish()

        return finished

    expert_exchange.start_exchange = started
    kernels = expert_exchange.pointwise

    def watched(compiled: bool) -> tuple[Any, ...]:
        names = ("gate", "gate_gradients")
        return tuple(
            told(kernel, lambda *_, name=name: events.append((name, "")))
            for name, kernel in zip(names, kernels(compiled), strict=True)
        )

    expert_exchange.pointwise = watched


def gathers(one: Cell, mesh: meshes.Mesh, engine: TorchEngine) -> Events:
    """Of a step: the collectives of FSDP2 and the beginnings of layers, in their order."""
    for place, part in enumerate(engine.chunks[0].parts):
        if isinstance(part, TransformerLayer):

            def begin(module: object, arguments: object, name: str = f"parts.{place}") -> None:
                with torch.profiler.record_function(f"begin {name}"):
                    pass

            part.register_forward_pre_hook(begin)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step(one, mesh, engine)
    found = sorted(
        (event.time_range.start, event.name)
        for event in profile.events()
        if event.name.startswith(("begin ", "FSDP::all_gather (", "FSDP::post_backward_reduce"))
    )
    return [(name.split(" ")[0], name.split(" ")[-1].strip("()")) for _, name in found]


def step(one: Cell, mesh: meshes.Mesh, engine: TorchEngine) -> None:
    """One optimiser step."""
    source = SyntheticTokens(one.model.vocabulary_size)
    engine.train_step(step_batches(source, one, mesh, 0))


def traced(cell: Cell) -> dict[str, Events]:
    """What happened on a rank in the second step."""
    mesh = meshes.create(cell.degrees, torch.device("cpu"))
    engine = TorchEngine(cell, mesh)
    step(cell, mesh, engine)  # it prepares more than later steps
    EVENTS.clear()
    found = gathers(cell, mesh, engine) if cell.degrees.dp > 1 else step(cell, mesh, engine)
    return {"gathers": found or [], "events": list(EVENTS)}


if __name__ == "__main__":
    watch(EVENTS)
    on_every_rank(lambda cell, _: traced(cell))
