"""With overlap communication is issued beside compute; without it, never."""

from contextlib import contextmanager
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.training.cells import named
from tests.training.ranks import launch
from workflow_lib.trainers.deepspeed.engine import buckets
from workflow_lib.trainers.native import sharding
from workflow_lib.trainers.native.pipeline import one_forward_one_backward

LAYOUTS = {
    "zero3": "dp2 zero3 batch2",
    "zero0": "dp2 zero0 batch2",
    "pipeline": "pp2",
    "interleaved": "pp2x2",
    "experts": "ep2 batch2",
}
CELLS = {
    f"{name} {switch}": named(f"torch {layout}", overlap=switch == "on")
    for name, layout in LAYOUTS.items()
    for switch in ("on", "off")
}


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """What two ranks did in one step of each cell, on CPUs."""
    directory = tmp_path_factory.mktemp("trace")
    alone = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    results = launch("trace", CELLS, directory, environment=alone)
    assert isinstance(results, dict), results
    return results


def gathered_ahead(gathers):
    """Layers whose weights were asked for before the layer ahead of them began."""
    begins = [layer for what, layer in gathers if what == "begin"]
    return [
        following
        for layer, following in pairwise(begins)
        if gathers.index(["FSDP::all_gather", following]) < gathers.index(["begin", layer])
    ]


@pytest.mark.slow
@pytest.mark.long
def test_weights_are_gathered_ahead_of_their_layer_only_with_overlap(traces):
    for rank in (0, 1):
        on, off = (traces[f"zero3 {switch}"][rank]["gathers"] for switch in ("on", "off"))

        assert gathered_ahead(on) == ["parts.2", "parts.3", "parts.4"]
        assert gathered_ahead(off) == []


@pytest.mark.slow
@pytest.mark.long
def test_without_overlap_every_collective_of_a_unit_runs_alone(traces):
    # Units with weights: the embedding, four layers, the head, and the root's norm.
    kinds = [what for _, what in traces["zero3 off"][0]["events"]]

    assert kinds.count("AloneReduceScatter") == 7
    # Embedding, layers, head and root for the forward pass; embedding and layers once more for the
    # backward pass.
    assert kinds.count("AloneAllGather") == 7 + 5
    assert [what for _, what in traces["zero0 off"][0]["events"]] == ["AfterAllReduce"] * 7
    assert traces["zero3 on"][0]["events"] == traces["zero0 on"][0]["events"] == []


def passes_while_posted(events):
    """For each send or receive: how many passes were run between posting and awaiting it."""
    return [
        sum(what == "pass" for what, _ in events[begin : events.index(["wait", name])])
        for begin, (what, name) in enumerate(events)
        if what == "post"
    ]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("schedule", ["pipeline", "interleaved"])
def test_sends_and_receives_run_beside_passes_only_with_overlap(traces, schedule):
    for rank in (0, 1):
        on, off = (traces[f"{schedule} {switch}"][rank]["events"] for switch in ("on", "off"))

        assert sum(passes_while_posted(on)) > 0
        assert set(passes_while_posted(off)) == {0}
        # The same work either way: four micro-batches forward and backward, through each chunk.
        passes = [event for event in on if event[0] == "pass"]
        assert passes == [event for event in off if event[0] == "pass"]
        assert len(passes) == (8 if schedule == "pipeline" else 16)


@pytest.mark.slow
@pytest.mark.long
def test_experts_compute_while_rows_of_others_travel_only_with_overlap(traces):
    # Two experts a rank. Both experts' rows are asked for at first. Each expert's results leave
    # while the other one computes.
    forward = [
        *("start 0", "start 1", "finish 0", "gate", "start 2", "finish 1", "gate", "start 3"),
        *("finish 2", "finish 3"),
    ]
    # The gradients of weights, which nothing waits for, come last.
    backward = [
        *("start 0", "start 1", "finish 0", "gate_gradients", "start 2"),
        *("finish 1", "gate_gradients", "start 3", "finish 2", "finish 3"),
    ]
    for rank in (0, 1):
        on, off = (
            [f"{what} {name}".strip() for what, name in traces[f"experts {switch}"][rank]["events"]]
            for switch in ("on", "off")
        )
        assert [renumbered(on[at : at + 10]) for at in range(0, 40, 10)] == [forward] * 4
        assert [renumbered(on[at : at + 10]) for at in range(40, 80, 10)] == [backward] * 4
        assert len(on) == 80
        assert not [each for each in off if each.startswith(("start", "finish", "gate"))]


def renumbered(events):
    """Events of exchanges with their numbers counted from the first of them."""
    first = int(events[0].split()[1])
    split = [each.split() for each in events]
    return [" ".join([what, *(str(int(each) - first) for each in name)]) for what, *name in split]


def test_1f1b_is_as_drawn_by_hand():
    first, last = one_forward_one_backward(ranks=2, micro_batches=3)

    assert first == [*(("F", 0), ("F", 1), None, ("B", 0), ("F", 2), ("B", 1), None, ("B", 2))]
    assert last == [None, ("F", 0), ("B", 0), ("F", 1), ("B", 1), ("F", 2), ("B", 2)]


class Stream:
    """Records which stream waits for which."""

    def __init__(self, name, events):
        self.name, self.events = name, events

    def wait_stream(self, other):
        self.events.append(f"{self.name} waits for {other.name}")


@pytest.mark.parametrize(
    ("collective", "function"),
    [
        (sharding.AloneAllGather, "all_gather_into_tensor"),
        (sharding.AloneReduceScatter, "reduce_scatter_tensor"),
    ],
)
def test_a_lone_collective_stands_between_computations(collective, function, monkeypatch):
    events = []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: Stream("transfer", events))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: Stream("compute", events))
    monkeypatch.setattr(dist, function, lambda *_, **__: events.append("collective"))

    reduces = collective is sharding.AloneReduceScatter
    alone = collective(torch.device("cuda", 0), *([True] if reduces else []))
    more = [dist.ReduceOp.SUM] if reduces else []
    alone(torch.empty(2), torch.empty(4), None, *more)

    assert events == ["transfer waits for compute", "collective", "compute waits for transfer"]


@pytest.mark.parametrize(
    ("kept", "stream"), [(True, "compute"), (False, "transfer")], ids=["ZeRO-1", "ZeRO-3"]
)
@pytest.mark.parametrize("kind", [sharding.ReduceScatter, sharding.AloneReduceScatter])
def test_slices_that_stay_until_the_step_take_memory_of_compute(kind, kept, stream, monkeypatch):
    current = ["transfer"]

    @contextmanager
    def on(chosen):
        before, current[0] = current[0], chosen.name
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda _: Stream("compute", []))
    monkeypatch.setattr(torch, "empty", lambda *_, **__: current[0])

    reduces = kind(torch.device("cuda", 0), kept)

    assert reduces.allocate((4,), dtype=torch.float32, device=None) == stream
    assert current == ["transfer"]


@pytest.mark.parametrize(("stage", "size"), [(1, 5e8), (2, 4096 * 128256), (3, 5e8)])
def test_in_zero2_a_bucket_holds_the_largest_gradient(stage, size):
    layers = [nn.Linear(4096, outputs, bias=False, device="meta") for outputs in (4096, 128256)]
    assert set(buckets(nn.Sequential(*layers), stage).values()) == {size}
