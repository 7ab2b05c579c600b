"""Initial weights that do not depend on the layout.

Each weight is drawn whole, by a generator that is seeded with the run's seed and the weight's
global name, and then cut. So any two layouts of a model start from the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from workflow_lib.trainers.native.collectives import group_rank, group_size
from workflow_lib.trainers.native.mesh import Mesh

#: what is noted on a parameter, and has to stay with it
MARKS = ("tensor_model_parallel", "allreduce", "group_name")
#: standard deviation of all matrices except those that write to the residual stream
STANDARD_DEVIATION = 0.02


@dataclass(frozen=True)
class Weights:
    """Makes parameters for one rank, in the precision that the model is held in."""

    mesh: Mesh
    seed: int
    dtype: torch.dtype
    #: if low-rank adapters train and all else is frozen, the precision of the adapters
    adapters: torch.dtype | None = None

    def for_adapters(self) -> Weights:
        """The maker of adapters, which are trained, beside these weights, which are frozen."""
        return replace(self, dtype=self.adapters or self.dtype, adapters=None)

    def normal(
        self,
        name: str,
        shape: Sequence[int],
        deviation: float = STANDARD_DEVIATION,
        split: int | None = None,
    ) -> nn.Parameter:
        """Draw a matrix of the whole model's ``shape``; keep this rank's part along ``split``."""
        return self.stacked([name], [shape], deviation, split)

    def stacked(
        self,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        deviation: float = STANDARD_DEVIATION,
        split: int | None = None,
    ) -> nn.Parameter:
        """Draw several matrices, cut each one, and join the pieces along their first dimension."""
        pieces = [
            self._cut(self._draw(name, shape, deviation), split)
            for name, shape in zip(names, shapes, strict=True)
        ]
        return self._parameter(torch.cat(pieces) if len(pieces) > 1 else pieces[0], split)

    def experts(
        self,
        names: Sequence[Sequence[str]],
        shape: Sequence[int],
        deviation: float = STANDARD_DEVIATION,
        split: int = 0,
    ) -> nn.Parameter:
        """Draw this rank's experts: for each one its matrices, cut, joined along dimension 0.

        ``names`` holds the matrices of every expert of the layer. The result is [local experts,
        matrices · rows, columns], and is marked as differing between expert-parallel ranks.
        """
        count = len(names) // self.mesh.degrees.ep
        first = self.mesh.place.ep * count
        stack = [
            torch.cat([self._cut(self._draw(name, shape, deviation), split) for name in expert])
            for expert in names[first : first + count]
        ]
        parameter = self._parameter(torch.stack(stack), split)
        if self.mesh.degrees.ep > 1:
            # DeepSpeed recognises an expert's weight by these two attributes.
            parameter.allreduce = False  # type: ignore[attr-defined]
            parameter.group_name = expert_group_name(self.mesh)  # type: ignore[attr-defined]
        return parameter

    def constant(self, size: int, value: float, split: int | None = None) -> nn.Parameter:
        """A vector of ``size`` equal numbers, cut if ``split`` is 0."""
        whole = torch.full((size,), value, device=self.mesh.device, dtype=self.dtype)
        return self._parameter(self._cut(whole, split), split)

    def zeros(self, shape: Sequence[int], split: int | None = None) -> nn.Parameter:
        """A matrix of zeros of the whole model's ``shape``, cut along ``split``."""
        whole = torch.zeros(tuple(shape), device=self.mesh.device, dtype=self.dtype)
        return self._parameter(self._cut(whole, split), split)

    def _draw(self, name: str, shape: Sequence[int], deviation: float) -> Tensor:
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        generator = torch.Generator(self.mesh.device)
        generator.manual_seed(int.from_bytes(digest[:7], "big"))
        whole = torch.normal(
            0.0, deviation, tuple(shape), generator=generator, device=self.mesh.device
        )
        return whole.to(self.dtype)

    def _cut(self, whole: Tensor, split: int | None) -> Tensor:
        group = self.mesh.tp_group
        if split is None or group_size(group) == 1:
            return whole
        return whole.chunk(group_size(group), dim=split)[group_rank(group)].clone()

    def _parameter(self, tensor: Tensor, split: int | None) -> nn.Parameter:
        parameter = nn.Parameter(tensor, requires_grad=self.adapters is None)
        # Gradient norms count a cut weight on every rank, any other weight on one rank only.
        parameter.tensor_model_parallel = split is not None  # type: ignore[attr-defined]
        return parameter


def marks_of(parameter: nn.Parameter) -> dict[str, object]:
    """What is noted on a parameter, for the one that replaces it."""
    return {name: value for name, value in vars(parameter).items() if name in MARKS}


def expert_group_name(mesh: Mesh) -> str:
    """The name under which the engine finds the expert-parallel groups."""
    return f"ep_size_{mesh.degrees.ep}"
