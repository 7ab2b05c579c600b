"""Counts the house: ``python -m docs.house [repository]`` prints its rooms, and who imports whom.

A room is a directory of modules. docs/architecture.md has the numbers of two commits; run this in a
checkout of either, or give its path, to have them again. tests/test_architecture.py asks the same
graph whether modules import what they may.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

from tabulate import tabulate

PACKAGE = "workflow_lib"
#: beside it: their modules import its own, and none of it imports theirs
BESIDE = ("docs", "benchmarks", "research")
Graph = Mapping[str, set[str]]


def modules(root: Path, *beside: str) -> dict[str, Path]:
    """Name within the package → file; the package's own name is empty. With directories of
    ``BESIDE`` also their modules, by their whole names."""
    found = {}
    for top in (PACKAGE, *beside):
        base = root / PACKAGE if top == PACKAGE else root
        for path in sorted((root / top).rglob("*.py")):
            parts = path.relative_to(base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """The names that a file imports, wherever in it, without the standard library's."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.partition(".")[0] not in sys.stdlib_module_names}


def is_within(name: str, package: str) -> bool:
    """Whether the name is the package's or of something in it."""
    return name == package or name.startswith(f"{package}.")


def project_imports(path: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules of the project that a file imports, of those that are ``known``."""
    found = set()
    for name in imports(path):
        if name.partition(".")[0] in (PACKAGE, *BESIDE):
            inner = name.removeprefix(PACKAGE).strip(".")
            # Of a module's contents, the module; of the package's, the package itself.
            found.add(inner if inner in known else inner.rpartition(".")[0])
    return found - {""}


def room(module: str, known: Mapping[str, Path]) -> str:
    """The room that a module lies in."""
    return module if known[module].name == "__init__.py" else module.rpartition(".")[0]


def between_rooms(graph: Graph, known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Room → the rooms that its modules import, of which neither lies in the other."""
    arrows: dict[str, set[str]] = {room(module, known): set() for module in graph}
    for module, imported in graph.items():
        own = room(module, known)
        others = {room(each, known) for each in imported}
        arrows[own] |= {each for each in others if not (_holds(each, own) or _holds(own, each))}
    return arrows


def _holds(room_: str, other: str) -> bool:
    """Whether a room is the other, or holds it."""
    return room_ == "" or is_within(other, room_)


def circles(graph: Graph) -> list[set[str]]:
    """Largest sets of nodes each of which leads to every other."""
    reach = {node: _reached(graph, node) for node in graph}
    found: list[set[str]] = []
    for node in graph:
        circle = {other for other in reach[node] if node in reach.get(other, set())}
        if circle and circle not in found:
            found.append(circle)
    return found


def _reached(graph: Graph, start: str) -> set[str]:
    """What can be reached from a node, itself only in a circle."""
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        node = waiting.pop()
        if node not in reached:
            reached.add(node)
            waiting += graph.get(node, ())
    return reached


def main() -> None:
    """Print the rooms of a repository, and what goes round in circles."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1]
    known = modules(root)
    graph = {name: project_imports(path, known) for name, path in known.items()}
    arrows = between_rooms(graph, known)
    lines = {name: path.read_text(encoding="utf-8").count("\n") for name, path in known.items()}
    rows = []
    for each in sorted(arrows):
        own = [name for name in known if room(name, known) == each and lines[name] > 1]
        rows.append((each or PACKAGE, len(own), sum(map(lines.get, own)), len(arrows[each])))
    rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    print(tabulate(rows, ["room", "modules", "lines", "rooms that it imports"]))
    print(f"\nmodules in the fullest room: {max(row[1] for row in rows[:-1])}")
    for what, found in (("modules", circles(graph)), ("rooms", circles(arrows))):
        print(f"circles of {what}: {len(found)}")
        for circle in found:
            print("  " + ", ".join(sorted(name or PACKAGE for name in circle)))


if __name__ == "__main__":
    main()
