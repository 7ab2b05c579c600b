"""Each field of a cell is followed through everything that sets cells side by side.

Two cells that differ in one field alone are never in one group, none of them is dropped, and what
is said to differ is what differs.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from tests.made_cells import made_cell
from tests.report.full_matrix import cell_row
from workflow_lib.comparison.matching import best_pairs, layout_pairs
from workflow_lib.comparison.sides import Side
from workflow_lib.config import Exclusion
from workflow_lib.records import cell_axes
from workflow_lib.records.cell import Cell
from workflow_lib.records.cell_axes import ALL_AXES, AXES, CellAxis, identity
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.labels import labels
from workflow_lib.records.tables import CELLS, PLAN, RUNS
from workflow_lib.report import summary
from workflow_lib.report.figures import KINDS
from workflow_lib.report.figures.kernels import Bar
from workflow_lib.report.figures.tables import Tables

#: the figures whose cells differ in some axes alone
VARIED = ("optimisation", "microbatch", "recomputation", "pipeline-ranks")
PIPELINED = Degrees(tp=2, pp=2, dp=2)


def other(axis: CellAxis, value: Any) -> Any:
    """Another value of the same field."""
    holder = Cell if not axis.part else typing.get_type_hints(Cell)[axis.part]
    kind = typing.get_args(typing.get_type_hints(holder, include_extras=True)[axis.field.name])[0]
    kinds = (kind, *typing.get_args(kind))
    choices = [each for each in kinds if typing.get_origin(each) is Literal]
    if choices:
        return next(each for each in typing.get_args(choices[0]) if each != value)
    if isinstance(value, Mapping):
        return {**value, "environment.NCCL_ALGO": "Ring"}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return 2 * value + 1
    if isinstance(value, tuple):
        return (*value, 3, 1)
    return f"{value or ''}another"


def changed(axis: CellAxis, cell: Cell) -> Cell:
    """The same cell but for one field, and so its id."""
    holder = getattr(cell, axis.part) if axis.part else cell
    different = {axis.field.name: other(axis, getattr(holder, axis.field.name))}
    if axis.part:
        different = {axis.part: dataclasses.replace(holder, **different)}
    return dataclasses.replace(cell, id=f"{cell.id}-{axis.name}", **different)


def row(cell: Cell, tokens_per_s: float = 1.0) -> dict[str, Any]:
    names = ("tokens_per_s", "tokens_per_s_per_gpu", "tokens_per_j", "decode_tokens_per_j")
    measured = dict.fromkeys((*names, "decode_tokens_per_s_per_gpu"), tokens_per_s)
    return cell_row(identity(cell), **measured)


def pair(axis: CellAxis, **options: Any) -> list[dict[str, Any]]:
    """Two cells that differ in the axis alone, and in options that both of them have."""
    base = made_cell(degrees=PIPELINED)
    if axis.field.axis.only_with:
        other, value = axis.field.axis.only_with
        options = {other: value, **options}
    if axis.name in options:
        del options[axis.name]
    training = dataclasses.replace(base.training, **options)
    told = "-".join(f"{name}{value}" for name, value in options.items())
    base = dataclasses.replace(base, training=training, id=f"{base.id}-{told}")
    return [row(base), row(changed(axis, base), 2.0)]


def each_axis() -> list[Any]:
    return [pytest.param(axis, id=name) for name, axis in AXES.items()]


def test_every_field_of_a_cell_is_an_axis():
    fields = set()
    for part in dataclasses.fields(Cell):
        kind = typing.get_type_hints(Cell)[part.name]
        inner = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else [part]
        of = part.name if dataclasses.is_dataclass(kind) else ""
        fields |= {(of, each.name) for each in inner}
    declared = {(axis.part, axis.field.name) for axis in ALL_AXES.values()}
    assert fields - declared == {("", "id"), ("", "format")}


@pytest.mark.parametrize("axis", each_axis())
def test_an_axis_is_a_column_of_every_table_of_cells(axis):
    for table in (PLAN, RUNS, CELLS):
        assert axis.column in table


def test_the_kind_of_data_is_said_only_if_their_name_does_not_tell_cells_apart():
    one, other = pair(AXES["data"])
    kinds = [{**one, "data_kind": "synthetic"}, {**other, "data_kind": "text"}]
    assert cell_axes.differing(kinds) == ["data"]
    assert cell_axes.differing(kinds, without=["data"]) == ["data_kind"]
    changed_since = [*kinds, {**kinds[1], "data_definition": "00000000"}]
    assert cell_axes.differing(changed_since) == ["data", "data_definition"]


def test_a_cell_that_waits_for_cool_gpus_is_told_from_one_that_does_not():
    one, other = pair(AXES["cool_down_limit_s"])
    cooled = [one, {**other, "cool_down_limit_s": 90.0, "cool_down_to_c": 37.0}]
    assert cell_axes.differing(cooled) == ["cool_down_limit_s"]
    assert cell_axes.differences(cooled) == [["no cool-down"], ["cool-down 90 s"]]
    warmer = [cooled[1], {**cooled[1], "cool_down_to_c": 42.0}]
    assert cell_axes.differences(warmer) == [["cool down to 37 °C"], ["cool down to 42 °C"]]
    assert cell_axes.differences([one, *warmer]) == [
        ["no cool-down"],
        ["cool down to 37 °C", "cool-down 90 s"],
        ["cool down to 42 °C", "cool-down 90 s"],
    ]


@pytest.mark.parametrize("axis", each_axis())
def test_cells_that_differ_in_an_axis_are_called_by_it(axis):
    cells = pair(axis)
    assert cell_axes.differing(cells) == [axis.name]
    told = labels(cells)
    assert len({(t, c["platform"], c["model"]) for t, c in zip(told, cells, strict=True)}) == 2


@pytest.mark.parametrize("figure", VARIED)
@pytest.mark.parametrize("axis", each_axis())
def test_a_group_of_a_figure_differs_in_its_axes_alone(axis, figure):
    free = cell_axes.varied_by(figure)
    variants = {"recomputation": ("none", "full"), "overlap": (False, True)}
    variants["micro_batch_size"] = (1, 4)
    cells = [
        cell for name in free for value in variants[name] for cell in pair(axis, **{name: value})
    ]
    unique = list({cell["cell"]: cell for cell in cells}.values())
    groups = cell_axes.alike(unique, free)
    assert sorted(cell["cell"] for group in groups for cell in group) == sorted(
        cell["cell"] for cell in unique
    ), "none is dropped"
    for group in groups:
        assert set(cell_axes.differing(group)) <= {*free}
    if axis.name not in free:
        values = [{str(cell[axis.name]) for cell in group} for group in groups]
        assert all(len(of_group) == 1 for of_group in values), "never one group"


def cells_of(item: Any) -> list[Mapping[str, Any]]:
    """The cells of an item of a figure: a cell, a bar, or a labelled group of cells."""
    if isinstance(item, Bar):
        return [item.cell]
    if isinstance(item, tuple) and isinstance(item[1], str):
        return list(item[0])
    return [item] if isinstance(item, dict) else list(item)


@pytest.mark.parametrize("axis", each_axis())
def test_every_figure_has_both_cells_and_says_which_is_which(axis):
    options = [{"recomputation": "none"}, {"recomputation": "full"}, {"micro_batch_size": 4}]
    cells = {cell["cell"]: cell for each in options for cell in pair(axis, **each)}
    # Where the axis itself is varied, each option has both of its values.
    tables = Tables(tuple(cells.values()), (), ())
    drawn = {kind.stem: list(kind.divide(tables)) for kind in KINDS}
    assert {"parallelism", "energy", "optimisation", "microbatch"} <= {
        stem for stem, divisions in drawn.items() if any(division.items for division in divisions)
    }
    for stem in ("parallelism", "energy"):
        found = [c["cell"] for d in drawn[stem] for item in d.items for c in cells_of(item)]
        assert sorted(found) == sorted(cells), "none is dropped, none is drawn twice"
    for stem in ("optimisation", "microbatch"):
        for division in drawn[stem]:
            names = [label for _, label in division.items]
            assert len(set(names)) == len(names), "a label is one group's"
            for group, _ in division.items:
                assert set(cell_axes.differing(group)) <= {*cell_axes.varied_by(stem)}
    for division in drawn["energy"]:
        (competing,) = division.items
        roles = {AXES[name].role for name in cell_axes.differing(competing)}
        assert roles <= {"layout", "option", "place"}


@pytest.mark.parametrize("axis", each_axis())
def test_only_how_a_cell_does_its_work_competes_for_the_best(axis):
    cells = pair(axis)
    side = Side("made", "made", tuple(cells), ())
    found = summary.groups(cells, {cell["cell"]: cell["cell"] for cell in cells}, side)
    competes = axis.role in ("layout", "option")
    assert len(found) == (1 if competes else 2)
    assert len({group.name for group in found}) == len(found)


@pytest.mark.parametrize("axis", each_axis())
def test_what_two_sweeps_may_differ_in_to_show_the_same_cell(axis):
    a, b = pair(axis)
    matches = {pair.match for pair in layout_pairs([a], [b])}
    expected = {"dp": "other_replicas", "pp": "other_stages", "nodes": "same_layout"}
    if axis.role == "place":
        assert matches == {"same_layout"}
    else:
        assert matches == {expected.get(axis.name, "unmatched")}
    for each in layout_pairs([a], [b]):
        if each.match == "unmatched" and axis.name != "model":
            assert f"differs in {axis.name}" in each.reason
    compete = axis.role in ("layout", "option", "place")
    assert bool(best_pairs([a], [b])) == compete


def test_a_sweep_can_exclude_by_every_option_and_degree():
    settable = {
        name
        for name, axis in AXES.items()
        if axis.part in ("degrees", "training")
        and axis.role != "protocol"
        and axis.field.axis.detail_of != "trainer"
        and not axis.field.is_nested
    }
    assert settable <= Exclusion.model_fields.keys()
