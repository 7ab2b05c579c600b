"""Says which files a module of this package runs with, by its imports.

What a command has made is out of date when one of these files changes, and a job's code is these
files. Nothing is imported for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_PACKAGE = Path(__file__).parent
#: a statement by which modules here import: its module and names, or modules. One in a docstring
#: matches as well.
_IMPORT = re.compile(
    rf"^[ \t]*(?:from ({_PACKAGE.name}[\w.]*) import (\([^)]*\)|.*)|import ({_PACKAGE.name}.*))",
    re.MULTILINE,
)


def files_behind(*modules: str, package: Path = _PACKAGE) -> list[Path]:
    """The files of modules, by their names within the package, and of all that these import,
    directly or not; with the templates and data that lie beside them.

    Raises ModuleNotFoundError if the package has no such module.
    """
    reached: dict[str, Path] = {}
    waiting = set(modules)
    while waiting:
        name = waiting.pop()
        path = _file_of(name, package)
        if path is None:
            raise ModuleNotFoundError(f"{package} has no module {name}")
        reached[name] = path
        imported = {_module_of(name, package) for name in _imported(path)}
        imported.add(name.rpartition(".")[0])  # Python runs a package before what it holds.
        waiting |= imported - reached.keys()
    directories = {path.parent for path in reached.values()}
    data = (file for directory in directories for file in _data_of(directory))
    return sorted({*reached.values(), *data})


def _imported(path: Path) -> tuple[str, ...]:
    """The names that a file imports from the package, each within it."""
    imported = []
    for module, names, modules in _IMPORT.findall(path.read_text(encoding="utf-8")):
        of = f"{module}." if module else ""
        # Of `name as other`, the name.
        listed = (
            name.split()[0] for name in (names or modules).strip("()").split(",") if name.split()
        )
        imported += [f"{of}{name}".partition(".")[2] for name in listed]
    return tuple(imported)


def _module_of(name: str, package: Path) -> str:
    """The module that a name is, or is defined in."""
    while _file_of(name, package) is None:
        name = name.rpartition(".")[0]
    return name


def _file_of(module: str, package: Path) -> Path | None:
    path = package.joinpath(*module.split(".")) if module else package
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _data_of(directory: Path) -> Iterator[Path]:
    """Files below a package's directory that are no modules, but of no package in it."""
    for path in directory.iterdir():
        if path.is_dir():
            if path.name != "__pycache__" and not (path / "__init__.py").exists():
                yield from _data_of(path)
        elif path.suffix != ".py":
            yield path
