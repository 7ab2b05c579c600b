"""Reads YAML that another user may have written, and bounds its depth and its number of values.

A few lines with aliases of aliases may stand for billions of values, each of which would be
checked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from workflow_lib.records import bounds, read_bytes


class YamlFileError(ValueError):
    """A file is not valid YAML. The message says why, without the file's name."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that refuses YAML with too many levels while it reads it.

    Its numbers are decimal, as YAML 1.2 has them. YAML 1.1 takes 48:00:00 for 172800, 010 for 8,
    1e-4 for text and 2026-11-25 for a date.
    """

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > bounds.CONFIGURATION_DEPTH.most + 1:
            raise YamlFileError(_too_deep())
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


_OF_1_1 = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OF_1_1]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(0|[1-9][0-9]*)$"), "-+0123456789"
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"([-+]?(\.[0-9]+|[0-9]+\.[0-9]*|(?:0|[1-9][0-9]*)(?=[eE]))([eE][-+]?[0-9]+)?"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    "-+.0123456789",
)


def _too_deep() -> str:
    return f"lists and mappings lie more than {bounds.CONFIGURATION_DEPTH.most} deep in each other"


def read_yaml(path: Path) -> Any:
    """The single document of a file, as plain data. Raises OSError, RecordError, YamlFileError."""
    try:
        text = read_bytes(path, bounds.CONFIGURATION_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise YamlFileError(f"not text in UTF-8: {error}") from None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        count, height = _size(node, {})
        if count > bounds.CONFIGURATION_VALUES.most:
            raise YamlFileError(f"over {bounds.CONFIGURATION_VALUES.most} values, with its aliases")
        if height > bounds.CONFIGURATION_DEPTH.most + 1:
            raise YamlFileError(_too_deep())
        _refuse_keys_given_twice(node)
        return loader.construct_document(node)
    except yaml.YAMLError as error:
        tab = "\\t" in str(error)
        remedy = "\nindent by blanks: YAML takes no tabs there" if tab else ""
        raise YamlFileError(f"not valid YAML: {error}{remedy}") from None
    except YamlFileError:
        raise
    except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's constructors of numbers and dates raise these errors for invalid values.
        raise YamlFileError(f"not valid YAML: it holds a value that is none: {error}") from None


def _refuse_keys_given_twice(root: Any) -> None:
    """Raise YamlFileError for a key that is given twice. YAML forbids that, but PyYAML silently
    keeps the last one.
    """
    looked_at, left = set(), [root]
    while left:
        node = left.pop()
        if id(node) in looked_at or not isinstance(node, yaml.CollectionNode):
            continue
        looked_at.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
            continue
        lines: dict[tuple[str, str], int] = {}
        for key, value in node.value:
            left += [key, value]
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if name in lines:
                raise YamlFileError(
                    f"line {line}: the key {key.value} is given twice, first in line "
                    f"{lines[name]}; keep one of them"
                )
            lines[name] = line


def _size(node: Any, known: dict[int, tuple[int, int] | None]) -> tuple[int, int]:
    """How many values a node stands for, aliases included, and how deep it is.

    ``known`` has the result for each node that was measured, and None for those being measured.
    Raises YamlFileError for an alias of a node that holds it.
    """
    size = known.get(id(node), (0, 0))
    if size is None:
        raise YamlFileError("an alias stands for a list or mapping that it lies in")
    if size != (0, 0):
        return size
    known[id(node)] = None
    count, height = 1, 0
    if isinstance(node, yaml.CollectionNode):
        pairs = isinstance(node, yaml.MappingNode)
        parts = [part for pair in node.value for part in pair] if pairs else node.value
        for part in parts:
            of_part = _size(part, known)
            count, height = count + of_part[0], max(height, of_part[1])
    known[id(node)] = (count, height + 1)
    return count, height + 1
