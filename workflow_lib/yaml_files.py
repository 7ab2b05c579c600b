"""Reads YAML that another user may have written, and bounds its depth and its number of values.

A few lines with aliases of aliases may stand for billions of values, each of which would be
checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from workflow_lib.records import bounds
from workflow_lib.records.reading import read_bytes


class YamlFileError(ValueError):
    """A file is not valid YAML. The message names it and says why."""


class Keys(dict[Any, Any]):
    """A mapping that knows the line, from 1, of each of its keys."""

    lines: dict[Any, int]


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """A loader that refuses YAML that is too deep or too large, or gives a key twice, while it
    reads it.

    Its numbers are decimal, as YAML 1.2 has them. YAML 1.1 takes 48:00:00 for 172800, 010 for 8,
    1e-4 for text and 2026-11-25 for a date.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0
        #: each node that is read → how many values it stands for, aliases included, and its height
        self.sizes: dict[Any, tuple[int, int]] = {}

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        self._refuse_beyond(0, self.depth)
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self.depth -= 1
        if is_alias and node not in self.sizes:
            raise YamlFileError("an alias stands for a list or mapping that it lies in")
        if not is_alias:
            parts = node.value if isinstance(node, yaml.CollectionNode) else []
            if isinstance(node, yaml.MappingNode):
                _refuse_keys_given_twice(node)
                parts = [part for pair in parts for part in pair]
            counts, heights = zip((0, 0), *(self.sizes[part] for part in parts), strict=True)
            self.sizes[node] = 1 + sum(counts), 1 + max(heights)
            self._refuse_beyond(*self.sizes[node])
        return node

    def _refuse_beyond(self, count: int, height: int) -> None:
        if count > bounds.CONFIGURATION_VALUES.most:
            raise YamlFileError(f"over {bounds.CONFIGURATION_VALUES.most} values, with its aliases")
        if height > (most := bounds.CONFIGURATION_DEPTH.most) + 1:
            raise YamlFileError(f"lists and mappings lie more than {most} deep in each other")

    def construct_keys(self, node: Any) -> Iterator[Keys]:
        keys = Keys()
        yield keys
        keys.update(self.construct_mapping(node))
        keys.lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}


_OF_1_1 = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _OF_1_1]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)$")
_FLOAT = re.compile(
    r"([-+]?(\.[0-9]+|[0-9]+\.[0-9]*|(?:0|[1-9][0-9]*)(?=[eE]))([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
)
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, "-+0123456789")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789")
_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_keys)


def read_yaml(path: Path) -> Any:
    """The single document of a file, as plain data, with Keys for its mappings. Raises OSError,
    RecordError and YamlFileError."""
    content = read_bytes(path, bounds.CONFIGURATION_BYTES)
    try:
        return _Loader(content.decode("utf-8")).get_single_data()
    except UnicodeDecodeError as error:
        raise YamlFileError(f"{path}: not text in UTF-8: {error}") from None
    except YamlFileError as error:
        raise YamlFileError(f"{path}: {error}") from None
    except (
        yaml.YAMLError,
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
        ValueError,
    ) as e:
        # PyYAML's constructors raise errors of their own for invalid values.
        raise YamlFileError(f"{path}: not valid YAML: {e}") from None


def _refuse_keys_given_twice(mapping: Any) -> None:
    """Raise YamlFileError for a key that is given twice. YAML forbids that, but PyYAML silently
    keeps the last one."""
    lines: dict[tuple[str, str], int] = {}
    for key in (key for key, _ in mapping.value if isinstance(key, yaml.ScalarNode)):
        line, name = key.start_mark.line + 1, (key.tag, key.value)
        if name in lines:
            raise YamlFileError(
                f"line {line}: the key {key.value} is given twice, first in line {lines[name]}; "
                "keep one of them"
            )
        lines[name] = line
