"""Figures can be read: in one column, in grey, from one cell to as many as the study has."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.colors import to_rgb

from workflow_lib.report.figures import (
    KINDS,
    FigureEntry,
    Tables,
    figures,
    figures_and_gaps,
    write_figures_of,
)
from workflow_lib.report.figures import energy as energy_figure
from workflow_lib.report.figures import microbatch as microbatch_figure
from workflow_lib.report.figures import throttling as throttling_figure
from workflow_lib.report.figures.kernel_times import CLASSES
from workflow_lib.report.figures.optimisation import _VARIANTS

from .full_matrix import full_matrix, write
from .looks import laid_out, legible, printed

FATES = ("out of memory", "infeasible", "comm. timeout", "bad telemetry", "not run")


@pytest.fixture(scope="module")
def of_study() -> Tables:
    return full_matrix(points=15)


def kind(entry: FigureEntry) -> str:
    return entry.stem.split("-")[0]


@pytest.mark.parametrize("count", [1, 7])
def test_each_kind_of_figure_is_drawn_of_few_cells(count):
    entries = figures(full_matrix(count=count, points=15))
    # One cell differs from no other, and beats none.
    comparing = {"optimisation", "microbatch", "recomputation", "energy"}
    wanted = len(KINDS) - (len(comparing) if count == 1 else 0)
    assert len({kind(entry) for entry in entries}) == wanted
    for entry in entries:
        legible(laid_out(entry), entry.stem)


@pytest.mark.long
def test_figures_of_305_cells_fit_into_a_column_without_overlapping_text(of_study):
    entries = figures(of_study)
    assert figures_and_gaps(of_study)[1] == []
    assert len({entry.stem for entry in entries}) == len(entries)
    by_kind: dict[str, list[FigureEntry]] = {}
    for entry in entries:
        by_kind.setdefault(kind(entry), []).append(entry)
    assert len(by_kind) == len(KINDS)
    for first, *_ in by_kind.values():
        legible(laid_out(first), first.stem)


@pytest.mark.long
def test_every_cell_that_did_not_complete_is_in_its_figures(of_study):
    (platform, model) = "h200", "gpt3-175b"
    failed = [
        cell
        for cell in of_study.cells
        if (cell["platform"], cell["model"]) == (platform, model) and not cell["completed"]
    ]
    assert len(failed) > 2
    entries = [entry for entry in figures(of_study) if model in entry.stem]
    for name in ("kernels", "throttling", "power"):
        marked = 0
        for entry in entries:
            if kind(entry) == name and (platform in entry.stem or name == "kernels"):
                texts = [text.get_text() for text, _ in printed(laid_out(entry))]
                marked += sum(map(texts.count, FATES))
        assert marked >= len(failed), name


@pytest.mark.long
def test_figures_of_several_processes_are_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr("workflow_lib.report.figures._FIGURES_A_PROCESS", 5)
    write(full_matrix(count=2, points=10), tmp_path)
    one, two = (write_figures_of(tmp_path, tmp_path / str(n), n) for n in (1, 2))
    assert len(one) > 2 * 5, "enough for two processes"
    assert [path.name for path in sorted(one)] == [path.name for path in two]
    assert [path.read_bytes() for path in sorted(one)] == [path.read_bytes() for path in two]


def lightness(colour: str) -> float:
    """As a grey printer shows it: Rec. 601 luma of the sRGB values, 0 to 1."""
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


@pytest.mark.parametrize(
    "looks",
    [
        [(each.colour, each.hatch) for each in CLASSES],
        [(each.colour, each.hatch) for each in _VARIANTS],
        [(colour, hatch) for _, _, colour, hatch in throttling_figure._CAUSES],
    ],
    ids=["kernels", "optimisations", "throttling"],
)
def test_neighbours_in_a_stack_differ_in_grey_or_hatch(looks):
    for (one, hatch), (other, next_hatch) in itertools.pairwise(looks):
        differ = abs(lightness(one) - lightness(other)) >= 0.1
        assert differ or hatch != next_hatch, (one, other)
    assert len(set(looks)) == len(looks)


def test_plain_classes_of_kernels_differ_in_grey_whichever_of_them_are_neighbours():
    plain = sorted(lightness(each.colour) for each in CLASSES if not each.hatch)
    assert all(lighter - darker > 0.06 for darker, lighter in itertools.pairwise(plain))


def test_lines_and_markers_differ_without_colour():
    assert len({marker for _, marker, _ in microbatch_figure._LINES}) == len(
        microbatch_figure._LINES
    )
    assert len({marker for _, marker in energy_figure._LOOKS}) == len(energy_figure._LOOKS)
