"""Counts what a layer keeps of its forward pass for the backward pass."""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Storages(TorchDispatchMode):
    """Remembers all memory that operators make, without keeping it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        results = function(*arguments, **(named or {}))
        given = {storage.data_ptr() for storage in _storages((arguments, named))}
        for storage in _storages(results):
            if storage.data_ptr() not in given:
                reference = StorageWeakRef(storage)
                self.made[reference.cdata] = reference, storage.nbytes()
        return results


def _storages(tree: object) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def kept_bytes(layer: nn.Module, x: Tensor) -> int:
    """Bytes that live between the passes because of the layer, without its input and output."""
    storages = _Storages()
    with storages:
        y = layer(x)
    gc.collect()
    output = StorageWeakRef(y.untyped_storage()).cdata
    return sum(
        size
        for key, (reference, size) in storages.made.items()
        if key != output and not reference.expired()
    )
