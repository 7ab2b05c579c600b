"""The files that modules run with: found by their imports, as grimp finds them."""

from __future__ import annotations

import re
from pathlib import Path

import grimp
import pytest

from workflow_lib.import_graph import files_behind
from workflow_lib.launch.snapshot import RUN_BY_JOBS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "workflow_lib"


def module(path: Path) -> str:
    """The name of a file's module within the package; the package's own is empty."""
    return (
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        .removesuffix("__init__")
        .rstrip(".")
    )


OWN = {module(path): path for path in sorted(PACKAGE.rglob("*.py"))}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """Module → what it imports and the package that it is in, by grimp."""
    built = grimp.build_graph("workflow_lib")
    whole = {name: f"workflow_lib.{name}".rstrip(".") for name in OWN}
    return {
        name: {
            imported.removeprefix("workflow_lib").lstrip(".")
            for imported in built.find_modules_directly_imported_by(whole[name])
        }
        | ({name.rpartition(".")[0]} if name else set())
        for name in OWN
    }


@pytest.mark.parametrize(
    "entry", ["plan", *RUN_BY_JOBS, *(name for name in OWN if name.endswith("__main__"))]
)
def test_the_modules_behind_one_are_those_of_the_syntax_trees(graph, entry):
    reached, waiting = set(), {entry}
    while waiting:
        reached |= waiting
        waiting = set().union(*(graph[each] for each in waiting)) - reached
    found = [path for path in files_behind(entry) if path.suffix == ".py"]
    assert found == sorted(OWN[each] for each in reached)


def write(directory: Path, **files: str) -> Path:
    for name, text in {"__init__": "", **files}.items():
        path = directory / "workflow_lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".py").write_text(text)
    return directory / "workflow_lib"


def names(package: Path, *modules: str) -> list[str]:
    found = files_behind(*modules, package=package)
    return [path.relative_to(package).as_posix() for path in found]


def test_templates_and_data_beside_a_module_belong_to_it_but_not_another_package_s(tmp_path):
    package = write(tmp_path, a="", b="import workflow_lib.c.d\n")
    for path in ("c/__init__.py", "c/d.py", "c/data/fit.json", "c/e/__init__.py", "c/e/f.csv"):
        (package / path).parent.mkdir(parents=True, exist_ok=True)
        (package / path).write_text("")
    assert names(package, "a") == ["__init__.py", "a.py"]
    assert names(package, "b") == [
        "__init__.py",
        "b.py",
        "c/__init__.py",
        "c/d.py",
        "c/data/fit.json",
    ]
    assert "c/e/f.csv" in names(package, "c.e")


@pytest.mark.parametrize(
    "statement",
    [
        "from workflow_lib import b\n",
        "from workflow_lib.b import name\n",
        "from workflow_lib.b import (\n    name as other,\n    another,\n)\n",
        "import workflow_lib.b as b, os\n",
        "def lazily():\n    from workflow_lib import b\n",
    ],
)
def test_every_form_of_import_is_read(tmp_path, statement):
    assert names(write(tmp_path, a=statement, b=""), "a") == ["__init__.py", "a.py", "b.py"]


def test_a_module_that_is_not_there_is_refused():
    with pytest.raises(ModuleNotFoundError, match="cells_of_old"):
        files_behind("plan", "cells_of_old")


def test_what_rules_make_is_made_of_every_module_that_they_run():
    """A rule that runs a module of the package watches the files of that module."""
    for path in sorted((ROOT / "rules").glob("*.smk")):
        for rule in re.split(r"(?m)^rule ", path.read_text())[1:]:
            run = set(re.findall(r"python -m workflow_lib\.([\w.]+)", rule))
            made_by = {f"{each}.__main__" if f"{each}.__main__" in OWN else each for each in run}
            watched = re.search(r"source_files\(([^)]*)\)|reduce_inputs", rule)
            for module in made_by - NOT_WATCHED:
                assert watched, (path, rule)
                assert watched[1] is None or f'"{module}"' in watched[1]


#: what these make is kept: a script as a run was submitted with, tokens by their digest
NOT_WATCHED = {"launch.__main__", "trainers.native.tokenize", "trainers.native.__main__"}
