"""Modules import what docs/architecture.md allows them, and nothing else."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from docs import house
from docs.house import imports, is_within

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"


@dataclass(frozen=True)
class Row:
    """A row of the page's table: its modules, and what they may import."""

    modules: frozenset[str]
    third_party: frozenset[str]
    project: frozenset[str]


def table():
    """The rows of the page's table."""
    section = PAGE.read_text(encoding="utf-8").partition("## Who may import what")[2]
    rows = []
    for line in section.partition("\n## ")[0].splitlines():
        if line.startswith("| `"):
            modules, third_party, project = (part.strip() for part in line.strip("| ").split(" | "))
            names = frozenset(re.findall(r"[a-z0-9_]+", third_party))
            rows.append(Row(quoted(modules), names, quoted(project)))
    return rows


def quoted(text):
    return frozenset(re.findall(r"`([a-z_.]+)`", text))


ROWS = table()
MODULES = house.modules(ROOT, *house.BESIDE)


def row_of(module):
    """The row with the longest name that fits the module, or None."""
    fitting = [(name, row) for row in ROWS for name in row.modules if is_within(module, name)]
    return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else None


def project_imports(path):
    """The modules of the project that a file imports."""
    return house.project_imports(path, MODULES)


def third_party(path):
    return {name.partition(".")[0] for name in imports(path)} - {house.PACKAGE, *house.BESIDE}


def pinned(file):
    """The packages that a file of versions pins."""
    return set(re.findall(r"^([\w-]+)==", (ROOT / file).read_text("utf-8"), re.MULTILINE))


def everything_behind(module):
    """The module and all of the project's that it imports, directly or not."""
    reached, waiting = set(), [module]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting += project_imports(MODULES[current])
    return reached


def test_every_module_has_a_row_and_every_row_a_module():
    assert [m for m in MODULES if m and row_of(m) is None] == []
    named = {name for row in ROWS for name in row.modules}
    assert {name for name in named if not any(is_within(each, name) for each in MODULES)} == set()


def test_nothing_goes_round_in_circles():
    graph = {name: project_imports(path) for name, path in MODULES.items()}
    assert house.circles(graph) == []
    assert house.circles(house.between_rooms(graph, MODULES)) == []


def test_circles_are_found():
    assert house.circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"d"}}) == [{"b", "c"}, {"d"}]


def test_the_package_itself_imports_nothing():
    assert imports(MODULES[""]) == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name])
def test_a_module_imports_what_its_row_allows(module):
    row = row_of(module)
    assert row is not None
    assert third_party(MODULES[module]) <= row.third_party
    allowed = row.modules | row.project
    foreign = {
        found
        for found in project_imports(MODULES[module])
        if row_of(found) is not row and not any(is_within(found, name) for name in allowed)
    }
    assert foreign == set(), f"{module} may import {', '.join(sorted(row.project)) or 'nothing'}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: ",".join(sorted(row.modules)))
def test_a_row_allows_nothing_that_is_not_used(row):
    paths = [path for name, path in MODULES.items() if row_of(name) is row]
    assert set().union(*map(third_party, paths)) == row.third_party
    used = set().union(*map(project_imports, paths))
    assert [name for name in row.project if not any(is_within(each, name) for each in used)] == []


@pytest.mark.parametrize(
    "entry",
    [
        "trainers.native.__main__",
        "telemetry.__main__",
        "launch.job.node",
        "launch.job.rank",
        "node_check",
        "trainers.native.tokenize",
    ],
)
def test_what_runs_on_compute_nodes_needs_no_packages_of_the_login_node(entry):
    behind = set().union(*(third_party(MODULES[module]) for module in everything_behind(entry)))
    assert behind & {"pydantic", "polars", "matplotlib", "jinja2", "yaml", "snakemake"} == set()


@pytest.mark.parametrize(
    "entry",
    [
        "docs.evidence",
        *(f"{each}.__main__" for each in ("archive", "claims", "comparison", "placement")),
    ],
)
def test_what_evaluators_run_without_gpus_needs_no_more_than_analysis_installs(entry):
    behind = set().union(*(third_party(MODULES[module]) for module in everything_behind(entry)))
    assert {"pyyaml" if name == "yaml" else name for name in behind} <= pinned("envs/analysis.txt")


def test_only_the_rules_know_snakemake():
    assert [name for name, path in MODULES.items() if "snakemake" in third_party(path)] == []


@pytest.mark.parametrize("package", ["pynvml", "amdsmi"])
def test_a_vendors_library_is_imported_only_where_it_is_used(package):
    for path in MODULES.values():
        body = ast.parse(path.read_text(encoding="utf-8")).body
        names = {
            alias.name for node in body if isinstance(node, ast.Import) for alias in node.names
        }
        assert package not in names, f"{path} imports {package} before anybody asks for it"
