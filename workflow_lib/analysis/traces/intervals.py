"""The time that a set of intervals covers, on each GPU by itself."""

from __future__ import annotations

import polars as pl


def covered_ns(kernels: pl.DataFrame) -> int:
    """The length of the union of ``[start_ns, end_ns)``, in ns, summed over the GPUs of
    ``device``; ``kernels`` are sorted by start.

    Each interval adds the part of it that lies after the ends of all intervals before.
    """
    if kernels["device"].n_unique() > 1:
        of_devices = kernels.partition_by("device", maintain_order=True)
        return sum(covered_ns(of_device) for of_device in of_devices)
    before = pl.col("end_ns").cum_max().shift(1).fill_null(pl.col("start_ns").min())
    added = (pl.col("end_ns") - pl.max_horizontal("start_ns", before)).clip(lower_bound=0)
    return int(kernels.select(added.sum()).item())
