"""Checks that a rank's numbers have the precisions that the cell and the documentation say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, replace

import torch

from workflow_lib.records.cell import Cell
from workflow_lib.records.training import Precision, Precisions, precisions_of

DTYPES: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp32": torch.float32}
#: names of those states of AdamW that have one number for each weight
MOMENTS = ("exp_avg", "exp_avg_sq")
_NAMES = {dtype: name for name, dtype in DTYPES.items()} | {torch.float8_e4m3fn: "fp8"}


class WrongPrecision(RuntimeError):
    """A rank holds or exchanges something in another precision than its cell's."""


def named(dtypes: Iterable[torch.dtype | None]) -> str | None:
    """The names of precisions, joined as in "bf16 and fp32" if they differ; None if
    there are none."""
    names = {
        _NAMES.get(dtype, str(dtype).removeprefix("torch."))
        for dtype in dtypes
        if dtype is not None
    }
    return " and ".join(sorted(names)) or None


def checked(cell: Cell, actual: Precisions, stepped: bool) -> Precisions:
    """The actual precisions, for the rank's record; those that the cell does not have are null.

    Until the rank has ``stepped``, a null precision is accepted as not there yet. Raises
    WrongPrecision.
    """
    expected = asdict(precisions_of(cell.training, cell.degrees))
    wrong = {
        what: precision
        for what, precision in asdict(actual).items()
        if expected[what] not in (None, precision) and (precision is not None or stepped)
    }
    if wrong:
        deviations = ", ".join(
            (f"{what} in {precision}" if precision else f"no {what}").replace("_", " ")
            + f" instead of {expected[what]}"
            for what, precision in wrong.items()
        )
        training = cell.training
        raise WrongPrecision(
            f"{training.backend} with ZeRO-{training.zero_stage} and precision "
            f"{training.precision} has {deviations}"
        )
    return replace(actual, **{what: None for what, wanted in expected.items() if wanted is None})
