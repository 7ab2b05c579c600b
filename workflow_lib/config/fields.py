"""Types of fields, and the base class, of all models of the configuration."""

from __future__ import annotations

import os
import re
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from workflow_lib import safety
from workflow_lib.records import bounds


def _without_password(text: str) -> str:
    """The text, unless it holds an address with a password in it. Raises ValueError."""
    if safety.holds_password(text):
        raise ValueError(
            "holds an address with a password in it, which must not lie in a file: use one without "
            "it, and give the password through your environment or a credentials file"
        )
    return text


#: the pattern of Text
TEXT = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]+$"
#: Text without characters that control a terminal, end a line, or change the order in which others
#: are shown. It may be written into a script (quoted), a page (escaped), or a message.
Text = Annotated[str, Field(pattern=TEXT), AfterValidator(_without_password)]
#: what a shell would replace: a home where a path begins, and a variable
_HOME = re.compile(r"(?:^|(?<=:))~[A-Za-z0-9_.-]*(?=[/:]|$)")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})")


def literal(text: str) -> str:
    """The text, unless a shell would replace something in it. Raises ValueError, which says what to
    write. Nothing is replaced here, because a variable may have another value on a node.
    """
    match = _HOME.search(text) or _VARIABLE.search(text)
    if match is None:
        return text
    remedy = "write out what it stands for"
    if not any(safety.names_secret(name[1] or name[2]) for name in _VARIABLE.finditer(text)):
        # Not Path.expanduser, which raises where there is no such user.
        meant = _HOME.sub(lambda home: os.path.expanduser(home[0]), text)  # noqa: PTH111
        meant = os.path.expandvars(meant)
        if not (_HOME.search(meant) or _VARIABLE.search(meant)):
            remedy = f"write {meant}"
    raise ValueError(f"{text!r} is taken as it is, and {match[0]} stays in it: {remedy}")


#: a path, an address or a name that is looked up; no shell reads it
PathText = Annotated[Text, AfterValidator(literal)]
#: sizes and counts whose products do not overflow: see records.bounds
PositiveInt = Annotated[int, Field(gt=0, le=bounds.DIMENSION.most)]
Ranks = Annotated[int, Field(gt=0, le=bounds.RANKS.most)]
GpusOfNode = Annotated[int, Field(gt=0, le=bounds.GPUS_OF_NODE.most)]
PositiveFloat = Annotated[float, Field(gt=0, le=bounds.QUANTITY.most)]


class Strict(BaseModel):
    """A model that refuses unknown keys, does not convert types ("8" is not 8), refuses .nan and
    .inf, and cannot be changed after loading.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )
