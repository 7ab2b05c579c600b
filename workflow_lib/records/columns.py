"""What a column of a file or table is; and every column of the files that ranks write.

``docs/reference/columns.md`` is made from this module, :mod:`telemetry_columns
<workflow_lib.records.telemetry_columns>` and the modules of tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from workflow_lib.records import ranges
from workflow_lib.records.ranges import Range


@dataclass(frozen=True)
class Column:
    """One column of a file or table: its name, type, unit and meaning."""

    name: str
    type: type
    unit: str
    description: str
    #: whether a file may lack the column: a later version added it, or not every trainer tells it
    later: bool = False

    @property
    def range(self) -> Range:
        """The least and the most that a number in this column can be."""
        return ranges.range_of(self.name)


#: What a value stands for, and so how it is integrated over time: a moment (``point``: a straight
#: line to the next value); the mean since the reading before (``mean_since_last``: it holds for
#: the whole time since then, and the first reading has no value); or a sum so far (``counter``:
#: only the difference of two values means anything)
Kind = Literal["point", "mean_since_last", "counter"]

#: gaps of at most this long, or this many periods, whichever is longer, are interpolated
_BRIDGED_GAP_S = 5.0
_BRIDGED_PERIODS = 5.0


@dataclass(frozen=True)
class SampledColumn(Column):
    """A column that the sampler reads of a GPU or node, declared here once.

    The sampler takes its bounds and periods from this, readers of files the range of values, and
    analysis the rules of gaps and of integration.
    """

    kind: Kind = "point"
    #: the values that it can have; None if its name tells (records.ranges). Another value is no
    #: reading, but a fault, or a sentinel such as all bits set for "not applicable". Power of a
    #: GPU (in W) also has a bound of each GPU: gpu_models.most_power_w
    values: Range | None = None
    #: whether 0 is a driver's way to say that it does not know
    positive: bool = False
    #: how often it is read, in s, unless its call fills columns that are read more often; 0 if at
    #: every tick
    period_s: float = 0.0
    #: the longest gap that is interpolated, in s; None if it follows from the period
    gap_s: float | None = None
    #: source of telemetry → why it never has the column
    lacking: Mapping[str, str] = field(default_factory=dict)

    @property
    def range(self) -> Range:
        """The values that it can have, both ends included."""
        return self.values or super().range

    @property
    def bounds(self) -> tuple[float, float]:
        """What a driver's value must be above, and at most, to be a reading."""
        least, most = self.range
        return 0.0 if self.positive else math.nextafter(least, -math.inf), most

    def bridged_s(self, sample_rate_hz: float) -> float:
        """The longest gap between two readings that is interpolated, in s."""
        if self.gap_s is not None:
            return self.gap_s
        return max(_BRIDGED_GAP_S, _BRIDGED_PERIODS * max(self.period_s, 1 / sample_rate_hz))


def sampled(columns: Iterable[Column]) -> dict[str, SampledColumn]:
    """Those columns of a file that hold readings, by name."""
    return {column.name: column for column in columns if isinstance(column, SampledColumn)}


def columns(
    *rows: tuple[str, type, str, str] | tuple[str, type, str, str, bool],
) -> tuple[Column, ...]:
    """Columns from tuples of name, type, unit, description and whether :data:`LATER`."""
    return tuple(Column(*row) for row in rows)


LATER = True
