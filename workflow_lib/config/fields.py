"""What every model of the configuration is made of."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: text without control characters: it may end up in a script, quoted, or in a page, escaped
Text = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$")]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]


class Strict(BaseModel):
    """Unknown keys are refused, nothing changes after loading; "8" is not 8, and .nan no number."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
