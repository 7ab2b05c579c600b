"""``config/meters.yaml``: what meters of the site showed of the GPUs' own sensors of power."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from workflow_lib.config.fields import Strict, Text
from workflow_lib.power_errors import OFFSET_W, SensorError


class Meter(Strict):
    """What a meter beside one GPU showed."""

    gain: Annotated[float, Field(gt=-0.5, lt=0.5)]
    """By how much the sensor's readings grow faster than the meter's, as a share of these: −0.046
    if 100 W more by the meter are 95.4 W more by the sensor."""
    uncertainty: Annotated[float, Field(ge=0, lt=0.5)]
    """By how much this gain may be wrong, with the meter's own error."""
    offset_w: Annotated[float, Field(ge=0, le=1000)] = OFFSET_W
    """How far the sensor may be off at 0 W, either way, once the gain is taken off."""
    source: Text
    """Which meter, when, and by whom."""

    @property
    def error(self) -> SensorError:
        """As bounds."""
        return SensorError(
            self.gain - self.uncertainty, self.gain + self.uncertainty, self.offset_w
        )


class Meters(Strict):
    """What meters of the site showed. Of a GPU that is not here, what is published is assumed: a
    gain within ±10 % and an offset within ±12.5 W."""

    gpus: Mapping[Text, Meter] = Field(default={})
    """UUID of a GPU, as its driver gives it → what a meter beside it showed."""
