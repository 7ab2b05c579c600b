"""Renders templates to pages, in which every value is text unless a template marks it as HTML, and
embeds data in them: compressed, to be small, and encoded, so that it cannot act as HTML."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import urllib.parse

import jinja2
from markupsafe import Markup

from workflow_lib.words import counted


def page_templates(*packages: str) -> jinja2.Environment:
    """The templates of ``packages``; if several have one name, the first is used. A template that
    uses a name without a value raises an error."""
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["counted"] = counted
    environment.globals["policy"] = policy
    return environment


def policy(script: str) -> Markup:
    """The element of a page that lets a browser run this script, and nothing else.

    It forbids every other script, plug-in, frame, form and address, whatever text gets into the
    page from files of others. Styles are not restricted, because figures have them in attributes.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    rules = (
        "default-src 'none'",
        f"script-src 'sha256-{digest}'",
        "style-src 'unsafe-inline'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    )
    return Markup('<meta http-equiv="Content-Security-Policy" content="{}">').format(
        "; ".join(rules)
    )


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
