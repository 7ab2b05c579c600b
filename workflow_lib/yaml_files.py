"""Reads YAML that may be anybody's: it cannot nest, repeat itself or grow beyond what is bounded.

A few lines of aliases of aliases stand for billions of values, which whoever checks them looks at
one by one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from workflow_lib.records import bounds, read_bytes


class YamlFileError(ValueError):
    """A file is no YAML that can be read; the message says why, without the file's name."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses what is nested too deep while it is being read."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > bounds.CONFIGURATION_DEPTH.most + 1:
            raise YamlFileError(_too_deep())
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _too_deep() -> str:
    return f"lists and mappings lie more than {bounds.CONFIGURATION_DEPTH.most} deep in each other"


def read_yaml(path: Path) -> Any:
    """The one document of a file. Raises OSError, RecordError and YamlFileError."""
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
        raise YamlFileError(f"not valid YAML: {error}") from None
    except YamlFileError:
        raise
    except (ValueError, OverflowError, LookupError, AttributeError, TypeError) as error:
        # PyYAML's own readers of numbers, dates and the like raise whatever they come upon.
        raise YamlFileError(f"not valid YAML: it holds a value that is none: {error}") from None


def _refuse_keys_given_twice(root: Any) -> None:
    """YAML forbids it, and PyYAML keeps the last one without a word. Raises YamlFileError."""
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
    """How many values a node stands for, and how deep it is.

    Every node is looked at once. An alias leads back to a node that was read, or is being read.
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
