"""Groups of things that share a key."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Key = TypeVar("Key")
Thing = TypeVar("Thing")


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Things by their key, keys and things in the order in which they come."""
    groups: dict[Key, list[Thing]] = {}
    for each in things:
        groups.setdefault(key(each), []).append(each)
    return groups
