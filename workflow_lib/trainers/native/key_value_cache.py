"""Keys and values of the tokens so far, kept while a sequence is generated."""

from __future__ import annotations

import torch
from torch import Tensor


class Place:
    """Where the next tokens of a micro-batch's sequences go: behind the ``length`` tokens so far.

    All layers share it, and whoever runs them advances it.
    """

    #: what attention adds to the scores of the keys that ``put`` returns, [1, 1, 1, keys]: 0, or −∞
    #: for those that the next tokens do not see; None if they see all those up to themselves
    bias: Tensor | None = None

    def __init__(self) -> None:
        self.length = 0

    def rows(self, table: Tensor, count: int) -> Tensor:
        """The rows of a table of positions that belong to the next ``count`` tokens."""
        return table[self.length : self.length + count]

    def put(self, new: Tensor, kept: Tensor) -> Tensor:
        """Write ``new``, [batch, tokens, heads, head size], to the next places of ``kept``, and
        return what is there so far.

        Raises ValueError for several tokens at once after the first, because a causal mask would
        then be wrong.
        """
        count = new.shape[1]
        if self.length and count != 1:
            raise ValueError(
                f"{count} tokens after {self.length}: a prompt is added whole, and then one token "
                "at a time"
            )
        kept[:, self.length : self.length + count] = new
        return kept[:, : self.length + count]


class MovingPlace(Place):
    """The place of a single next token, in a tensor on the device.

    The operations are the same for every place, so one CUDA graph serves them all. Attention reads
    all ``capacity`` keys instead, and masks those that are not there yet. What layers share is
    computed once for a token.
    """

    def __init__(self, capacity: int, dtype: torch.dtype, device: torch.device) -> None:
        """``dtype`` is that of queries, keys and values."""
        super().__init__()
        self._places = torch.arange(capacity, device=device)
        self._next = torch.zeros(1, dtype=torch.int64, device=device)
        self._dtype = dtype
        self._rows: list[tuple[Tensor, Tensor]] = []

    def move(self, length: int) -> None:
        """Continue behind ``length`` tokens."""
        self._next.fill_(length)

    def look(self) -> None:
        """Compute which keys the next token sees."""
        bias = torch.zeros(self._places.shape, dtype=self._dtype, device=self._places.device)
        bias.masked_fill_(self._places > self._next, -torch.inf)
        self.bias, self._rows = bias.view(1, 1, 1, -1), []

    def advance(self) -> None:
        """Go on to the place behind this one."""
        self._next.add_(1)

    def rows(self, table: Tensor, count: int) -> Tensor:
        """The row of the next token; ``count`` is 1."""
        for of_table, row in self._rows:
            if of_table is table:
                return row
        row = table.index_select(0, self._next)
        self._rows.append((table, row))
        return row

    def put(self, new: Tensor, kept: Tensor) -> Tensor:
        """Write ``new`` to its place, and return all of ``kept``; ``bias`` tells what is there."""
        return kept.index_copy_(1, self._next, new)


class KeyValueCache:
    """Keys and values of one layer, for the sequences of one micro-batch.

    Memory for ``capacity`` tokens is allocated at once: [batch, capacity, heads, head size] for
    each. It starts as zeros, because attention also reads masked values: zero times what lies there
    must be zero.
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
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)

    def extend(self, keys: Tensor, values: Tensor, place: Place) -> tuple[Tensor, Tensor]:
        """Add [batch, new tokens, heads, head size] of each at their place; return those that
        attention reads."""
        return place.put(keys, self._keys), place.put(values, self._values)
