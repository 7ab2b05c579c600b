"""Data within the page: compressed, so that it is small, and encoded, so that it is only data."""

from __future__ import annotations

import base64
import gzip
import json
import re
import urllib.parse

from markupsafe import Markup


def embedded(name: str, data: object) -> Markup:
    """A script element that holds ``data`` and is never run: canonical JSON, in gzip, in Base64.

    ``unpacked(name)`` in the page's script gives it back. The same data gives the same bytes; of
    Base64's letters none can end the element. Raises ValueError for a name that is no plain word,
    and for NaN and infinity, which are no JSON.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]*", name):
        raise ValueError(f"{name!r} cannot be an id: use small letters, digits and hyphens")
    text = json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    # Without a time; a name gzip.compress never writes.
    packed = base64.b64encode(gzip.compress(text.encode("ascii"), 9, mtime=0)).decode("ascii")
    return Markup(f'<script type="application/octet-stream" id="data-{name}">{packed}</script>')


def address(cell: str) -> str:
    """Where the page shows a cell: "#cell=" and its id, percent-encoded."""
    return f"#cell={urllib.parse.quote(cell, safe='')}"
