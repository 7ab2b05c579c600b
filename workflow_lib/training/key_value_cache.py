"""Keys and values of the tokens so far, kept while a sequence is generated."""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValueCache:
    """Keys and values of one layer, for the sequences of one micro-batch.

    Memory for ``capacity`` tokens is allocated at once: [batch, capacity, heads, head size] for
    each.
    """

    def __init__(
        self,
        batch: int,
        capacity: int,
        heads: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (batch, capacity, heads, head_size)
        self._keys = torch.empty(shape, dtype=dtype, device=device)
        self._values = torch.empty(shape, dtype=dtype, device=device)
        #: tokens held
        self.length = 0

    def clear(self) -> None:
        """Forget all tokens."""
        self.length = 0

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add [batch, new tokens, heads, head size] of each; return keys and values of all tokens
        so far.

        Raises ValueError for several tokens at once after the first call, because a causal mask
        would then be wrong.
        """
        if self.length and keys.shape[1] != 1:
            raise ValueError(
                f"{keys.shape[1]} tokens after {self.length}: a prompt is added whole, and then "
                "one token at a time"
            )
        end = self.length + keys.shape[1]
        self._keys[:, self.length : end] = keys
        self._values[:, self.length : end] = values
        self.length = end
        return self._keys[:, :end], self._values[:, :end]
