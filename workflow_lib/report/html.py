"""Renders templates to pages: every value is text unless a template marks it as HTML."""

from __future__ import annotations

import base64
import hashlib

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
