"""A pipeline's step by the speeds of its GPUs, relative to the step as it was measured.

With w the work of a pipeline's rank (FLOPs a token, :func:`workflow_lib.formulas.stage_work`), f
the speed of the slowest of its GPUs, and m micro-batches::

    τ = w / f     of each rank

In 1F1B with one chunk a rank the step T is the longest of the ways through one rank k each, with D
= Σ τ of the w ranks after it::

    T = max over k of Σ τ before k + m · τ_k + max(0, D − w · F_k) + max(0, D − w · B_k)

k's pass has the halves F and B. Before its first B and before its last, k waits until a micro-batch
has come back through the ranks after it, and meanwhile has w passes of its own to compute. So a
slow rank costs less the earlier it is. Where all τ are equal, T is (m + p − 1) · τ (arXiv
2104.04473, section 2.2). Of the other schedules the passes are added up in their order
(:mod:`workflow_lib.schedules`). Forward passes alone take m · max τ + Σ τ − max τ.

Communication and what a step does besides take no time here: they make true gains smaller, never
larger. :mod:`workflow_lib.placement.search` allows for that.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from workflow_lib import formulas, schedules
from workflow_lib.placement.effects import Floats, Place
from workflow_lib.records.cell import Cell
from workflow_lib.records.degrees import Degrees, coordinates
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training

Order = tuple[int, ...]

#: orders that are all tried; with more, as with 16 GPUs a node, fast GPUs go to heavy stages
_MOST_ORDERS = 50_000


class Pipeline:
    """A cell as work over stages."""

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.model: Model = cell.model
        self.degrees: Degrees = cell.degrees
        self.training: Training = cell.training
        self.work = formulas.stage_work(cell.model, cell.training)
        replicas = cell.degrees.dp * cell.training.micro_batch_size
        self.micro_batches = cell.training.global_batch_size // replicas
        self.ranks_per_node = cell.ranks_per_node

    @property
    def layers_can_move(self) -> bool:
        """Whether stages can have other numbers of layers: with one chunk a rank."""
        return self.degrees.pp > 1 and self.degrees.virtual_stages == 1

    def layers(self, degrees: Degrees) -> tuple[int, ...]:
        """Of each pipeline rank, all its stages together."""
        of_stages = degrees.layers_of_stages(self.model.layers)
        ranks = (self.degrees.stages_of(rank) for rank in range(degrees.pp))
        return tuple(sum(of_stages[stage] for stage in mine) for mine in ranks)

    def ends(self, head: float = 1.0) -> Floats:
        """Work of each rank besides layers, (pp): the embedding, and ``head`` times the head's."""
        of_stages = self._ends_of_stages(head)
        ranks = (self.degrees.stages_of(rank) for rank in range(self.degrees.pp))
        return np.array([of_stages[list(mine)].sum() for mine in ranks])

    def _ends_of_stages(self, head: float = 1.0) -> Floats:
        ends = np.zeros(self.degrees.stages)
        ends[0] += self.work.embedding
        ends[-1] += head * self.work.head
        return ends

    def work_of(self, layers: npt.ArrayLike) -> Floats:
        """w of each rank, (…, pp), of its layers, (…, pp)."""
        return np.asarray(layers) * self.work.layer + self.ends()

    def passes(self, layers: npt.ArrayLike, speeds: Floats) -> Floats:
        """τ of each rank, (…, pp), of layers and speeds of (…, pp)."""
        return self.work_of(layers) / speeds

    def step(self, passes: Floats) -> Floats:
        """T, (…), of τ of (…, pp)."""
        if self.training.workload == "inference":
            longest = passes.max(axis=-1)
            return np.asarray(self.micro_batches * longest + passes.sum(axis=-1) - longest)
        if self.degrees.schedule == "1f1b" and self.degrees.virtual_stages == 1:
            return self._one_f_one_b(passes)
        forward = schedules.forward_share(self.training)
        return schedules.step(self.degrees, self.micro_batches, passes, self._shares(), forward)

    def _shares(self) -> list[float]:
        """The share of its rank's work that each stage has, as the cell's layers lie."""
        layers = np.array(self.degrees.layers_of_stages(self.model.layers))
        work = layers * self.work.layer + self._ends_of_stages()
        for rank in range(self.degrees.pp):
            held = list(self.degrees.stages_of(rank))
            work[held] /= work[held].sum()
        return [float(share) for share in work]

    def _one_f_one_b(self, passes: Floats) -> Floats:
        before = passes.cumsum(axis=-1) - passes
        after = passes.sum(axis=-1, keepdims=True) - before - passes
        ranks_after = np.arange(self.degrees.pp)[::-1]
        # With few micro-batches all of them are on their way before the first comes back.
        ahead = np.minimum(ranks_after, self.micro_batches - 1)
        forward = schedules.forward_share(self.training)
        first = np.maximum(0, after - ahead * forward * passes)
        last = np.maximum(0, after - ahead * (1 - forward) * passes)
        last = np.where(self.micro_batches > ranks_after + 1, last, 0)
        return np.asarray((before + self.micro_batches * passes + first + last).max(axis=-1))

    def places(self, nodes: Sequence[str]) -> list[list[tuple[str, int]]]:
        """Of each pipeline rank, the node and the local rank of all ranks that have its stages."""
        places: list[list[tuple[str, int]]] = [[] for _ in range(self.degrees.pp)]
        for rank in range(self.degrees.world_size):
            node, local = divmod(rank, self.ranks_per_node)
            places[coordinates(rank, self.degrees).pp].append((nodes[node], local))
        return places

    def speeds(
        self, orders: Sequence[Order], nodes: Sequence[str], logs: Mapping[Place, Floats]
    ) -> Floats:
        """Speed of each pipeline rank, (orders, draws, pp): that of its slowest GPU.

        ``logs`` has the logarithm of each GPU's speed, of (draws).
        """
        chosen = np.array(orders)
        of_nodes = {
            node: np.array([logs[node, gpu] for gpu in range(self.ranks_per_node)])
            for node in nodes
        }
        stages = [
            np.min([of_nodes[node][chosen[:, local]] for node, local in members], axis=0)
            for members in self.places(nodes)
        ]
        return np.asarray(np.exp(np.stack(stages, axis=-1)))

    def orders(self, nodes: Sequence[str], speeds: Mapping[Place, float]) -> list[Order]:
        """Orders of a node's GPUs that differ in what stage a GPU has, the plain one first.

        One order serves all nodes, so that ranks of one rail stay on it. Where there are too many
        of them, the plain one, and one in which faster GPUs have stages of more work.
        """
        count = self.ranks_per_node
        plain = tuple(range(count))
        stage_of: list[list[int]] = [[] for _ in plain]
        for stage, members in enumerate(self.places(nodes)):
            for _, local in members:
                stage_of[local].append(stage)
        # Local ranks with the same stages on all nodes can be exchanged.
        groups: dict[tuple[int, ...], list[int]] = {}
        for local, held in enumerate(stage_of):
            groups.setdefault(tuple(held), []).append(local)
        sizes = [len(group) for group in groups.values()]
        if math.factorial(count) // math.prod(map(math.factorial, sizes)) > _MOST_ORDERS:
            return [plain, self._by_speed(list(groups.items()), nodes, speeds)]
        orders = []
        for chosen in _divisions(frozenset(plain), sizes):
            order = [0] * count
            for locals_, gpus in zip(groups.values(), chosen, strict=True):
                for local, gpu in zip(locals_, gpus, strict=True):
                    order[local] = gpu
            orders.append(tuple(order))
        return sorted(orders, key=lambda order: order != plain)

    def _by_speed(
        self,
        groups: Sequence[tuple[tuple[int, ...], list[int]]],
        nodes: Sequence[str],
        speeds: Mapping[Place, float],
    ) -> Order:
        heavy = self.work_of(self.layers(self.degrees))
        fastest = sorted(
            range(self.ranks_per_node), key=lambda gpu: -min(speeds[node, gpu] for node in nodes)
        )
        order = [0] * self.ranks_per_node
        for _, locals_ in sorted(groups, key=lambda group: -max(heavy[list(group[0])])):
            for local in locals_:
                order[local] = fastest.pop(0)
        return tuple(order)

    def divided(self, speeds: Floats) -> npt.NDArray[np.int64]:
        """Layers of each rank, (…, pp), so that the longest τ is as short as can be.

        Each layer goes where it will end first. As layers are alike, no other choice makes the
        longest τ shorter.
        """
        layers = np.ones(speeds.shape, dtype=np.int64)
        for _ in range(self.model.layers - self.degrees.pp):
            best = self.passes(layers + 1, speeds).argmin(axis=-1)
            np.put_along_axis(
                layers,
                best[..., None],
                np.take_along_axis(layers, best[..., None], axis=-1) + 1,
                axis=-1,
            )
        return layers


def _divisions(items: frozenset[int], sizes: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Every way to divide items into ordered groups of these sizes."""
    if not sizes:
        yield []
        return
    for chosen in itertools.combinations(sorted(items), sizes[0]):
        for rest in _divisions(items - set(chosen), sizes[1:]):
            yield [chosen, *rest]
