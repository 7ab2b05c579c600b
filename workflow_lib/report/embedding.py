"""Embeds data in a page: compressed, to be small, and encoded, so that it cannot act as HTML."""

from __future__ import annotations

import base64
import gzip
import json
import re
import urllib.parse

from markupsafe import Markup


def embedded(name: str, data: object) -> Markup:
    """A script element that holds ``data`` and is never run: canonical JSON, in gzip, in Base64.

    ``unpacked(name)`` in the page's script gives the data back. The same data gives the same bytes.
    No character of Base64 can end the element. Raises ValueError for a name that is not a plain
    word, and for NaN and infinity, which JSON does not have.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(f"{name!r} cannot be an id: use lowercase letters, digits and hyphens")
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    # mtime=0 leaves out the time, and gzip.compress writes no file name.
    packed = base64.b64encode(gzip.compress(text.encode("ascii"), 9, mtime=0)).decode("ascii")
    return Markup(f'<script type="application/octet-stream" id="data-{name}">{packed}</script>')


def address(cell: str) -> str:
    """The address of a cell within the page: "#cell=" and its id, percent-encoded."""
    return f"#cell={urllib.parse.quote(cell, safe='')}"
