"""Rotary positions (arXiv 2104.09864), as in Llama and Mixtral."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from workflow_lib.trainers.native.context_parallel import Chunks


@functools.lru_cache(maxsize=4)
def rotary_table(
    chunks: Chunks,
    size: int,
    base: float,
    device: torch.device,
    scaling: tuple[float, ...] = (),
) -> tuple[Tensor, Tensor]:
    """Cosines, [length, 1, size], and sines, [length, 1, size / 2], of rotary positions in fp32.

    The positions are those of ``chunks``.

    Pair i of size / 2 turns by base^(−2i / size) radians from one position to the next; ``scaling``
    makes that less (see :class:`.records.model.Model`). Both numbers of a pair turn by one
    angle, so each cosine occurs twice. One table serves every layer. It is computed from integers,
    because DeepSpeed's ZeRO-3 makes every new tensor of floats bf16.
    """
    exponents = torch.arange(0, size, 2, device=device).float() / size
    positions = torch.cat([torch.arange(*chunk, device=device) for chunk in chunks]).float()
    angles = torch.outer(positions, _scaled(base**-exponents, scaling)).unsqueeze(1)
    return angles.cos().repeat(1, 1, 2), angles.sin()


def _scaled(frequencies: Tensor, scaling: tuple[float, ...]) -> Tensor:
    """Radians per position of each pair, stretched.

    A single factor divides all of them (arXiv 2306.15595, section 2.3). Llama 3.1 divides the
    frequencies of pairs that turn fewer than ``low`` times within the original length, keeps those
    of pairs that turn more than ``high`` times, and interpolates linearly between (its reference
    code, github.com/meta-llama/llama-models, models/llama3/model.py, apply_scaling).
    """
    if not scaling:
        return frequencies
    if len(scaling) == 1:
        return frequencies / scaling[0]
    factor, low, high, length = scaling
    turns = frequencies * (length / (2 * math.pi))
    unchanged = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (unchanged + (1 - unchanged) / factor)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (i, i + size/2) of x, [batch, sequence, heads, size], by its position.

    ``cosines`` and ``sines`` are the rows of ``rotary_table`` for these positions. It is computed
    in fp32. Only they are kept for the backward pass, which turns the gradient back. A compiler
    gets the plain formula, because torch 2.11 compiles the autograd function below into one with
    wrong gradients.
    """
    if torch.compiler.is_compiling():
        first, second = x.float().chunk(2, dim=-1)
        cosine = cosines.chunk(2, dim=-1)[0]
        turned = (first * cosine - second * sines, second * cosine + first * sines)
        return torch.cat(turned, dim=-1).to(x.dtype)
    result: Tensor = _Rotate.apply(x, cosines, sines)  # type: ignore[no-untyped-call]
    return result


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        context.save_for_backward(cosines, sines)
        return _turn(x, cosines, sines, 1)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        cosines, sines = context.saved_tensors
        return _turn(gradients[0], cosines, sines, -1), None, None


def _turn(x: Tensor, cosines: Tensor, sines: Tensor, direction: int) -> Tensor:
    turned = x * cosines
    first, second = x.chunk(2, dim=-1)
    to_first, to_second = turned.chunk(2, dim=-1)
    to_first.addcmul_(second, sines, value=-direction)
    to_second.addcmul_(first, sines, value=direction)
    return turned.to(x.dtype)
