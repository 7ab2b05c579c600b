"""How templates become pages: every value is text unless a template says that it is HTML."""

from __future__ import annotations

import jinja2

from workflow_lib.words import counted


def page_templates(*packages: str) -> jinja2.Environment:
    """The templates of ``packages``; of one name, that of the first. A name that is not given is an
    error.
    """
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["counted"] = counted
    return environment
