"""What `lint-imports` does not say: that neither modules nor directories import in circles."""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Module → the modules that it imports."""
    graph = grimp.build_graph("workflow_lib")
    return {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}


def directory(module: str) -> str:
    """The directory that a module lies in."""
    is_package = (ROOT / module.replace(".", "/")).is_dir()
    return module if is_package else module.rpartition(".")[0]


def test_modules_do_not_import_in_circles(imports):
    TopologicalSorter(imports).prepare()


def test_directories_beside_each_other_do_not_import_in_circles(imports):
    rooms: dict[str, set[str]] = {}
    for module, imported in imports.items():
        room = directory(module)
        for other in map(directory, imported):
            if not (f"{room}.".startswith(f"{other}.") or f"{other}.".startswith(f"{room}.")):
                rooms.setdefault(room, set()).add(other)
    TopologicalSorter(rooms).prepare()


def test_a_circle_is_refused():
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"c"}, "c": {"b"}}).prepare()


def test_the_package_itself_imports_nothing(imports):
    assert imports["workflow_lib"] == set()
