"""Every mark of a figure says what it is and its value, in SVG alone; SVG stays small and true."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from workflow_lib.report.figures import FigureEntry, Tables, figures, style
from workflow_lib.report.figures.marks import _Marks, tell
from workflow_lib.report.figures.style import shortened

from .full_matrix import cell_row, full_matrix, identity, run_row
from .test_figure_values import TP2_PP2


@pytest.fixture(scope="module")
def tables() -> Tables:
    return full_matrix(count=7, points=15)


def of_kind(tables: Tables, kind: str) -> FigureEntry:
    return next(entry for entry in figures(tables) if entry.stem.split("-")[0] == kind)


def mark_texts(axes) -> list[str]:
    return [text for child in axes.artists if isinstance(child, _Marks) for *_, text in child.marks]


def marks(entry: FigureEntry) -> list[str]:
    with style.styled(entry.stem):
        return [text for axes in entry.draw().axes for text in mark_texts(axes)]


def test_points_of_cells_and_runs_tell_value_unit_and_interval():
    known = identity("h200", "gpt3-175b", TP2_PP2)
    cell = cell_row(known, tokens_per_s=(200.0, 190.0, 210.0))
    runs = tuple(run_row(known, n, tokens_per_s=180.0 + 10 * n) for n in (1, 2, 3))
    texts = marks(of_kind(Tables((cell,), runs, ()), "parallelism"))
    assert texts == [
        "tp2-pp2-dp2, run 1: 190 tokens/s",
        "tp2-pp2-dp2, run 2: 200 tokens/s",
        "tp2-pp2-dp2, run 3: 210 tokens/s",
        "tp2-pp2-dp2: Throughput 200 tokens/s (190–210)",
    ]


def test_runs_that_did_not_complete_have_no_point():
    known = identity("h200", "gpt3-175b", TP2_PP2)
    cell = cell_row(known, tokens_per_s=(200.0, 190.0, 210.0)) | {"repeats": 3, "completed": 2}
    # Its steps count, but it is no result, and no median has it.
    unwatched = run_row(known, 2, tokens_per_s=90.0) | {"outcome": "telemetry_invalid"}
    runs = (run_row(known, 1, tokens_per_s=190.0), unwatched, run_row(known, 3, tokens_per_s=210.0))
    texts = marks(of_kind(Tables((cell,), runs, ()), "parallelism"))
    assert [text.split(":")[0].removeprefix("tp2-pp2-dp2 (2/3)") for text in texts] == [
        ", run 1",
        ", run 3",
        "",
    ]


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("energy", r".+ \(h200\): [\d,.]+ tokens/s \([\d,.–]+\), [\d.]+ J per token \([\d.–]+\)"),
        ("optimisation", r".+, (neither|overlap|recomputation|both): .+ [\d,.]+ \S+.* \(.+–.+\)"),
        ("microbatch", r".+, micro-batch [1248]: .+ [\d,.]+ \S+.* \(.+–.+\)"),
        ("kernels", r".+: (ranks [\d.]+–|.+ )[\d.]+ s"),
        ("pipeline", r"pipeline rank \d+: GEMM [\d.]+ s, .+ s"),
        ("traffic", r".+, node \d GPU \d: [\d,.]+ GB/s"),
        ("gpus", r".+, node \d GPU \d: [\d.]+ (°C|% of time)"),
        ("throttling", r".+: (At power cap|Thermal slowdown|Power brake) [\d.]+ % of time \(.+\)"),
    ],
)
def test_marks_of_each_kind(tables, kind, pattern):
    texts = marks(of_kind(tables, kind))
    assert len(texts) > 5
    assert [text for text in texts if not re.fullmatch(pattern, text)] == []


def test_every_field_of_a_heat_map_has_one(tables):
    entry = of_kind(tables, "gpus")
    with style.styled(entry.stem):
        axes = entry.draw().axes[0]
    values = axes.images[0].get_array()
    assert len(mark_texts(axes)) == values.count() > 100


def test_a_mark_lies_over_its_bar_and_is_in_svg_alone(tmp_path):
    def bar(speaks: bool) -> Figure:
        figure = Figure(figsize=(2, 2))
        ((axes,),) = style.grid(figure, 1, 1, (0.5, 0.5, 0.5, 0.5), (0.0, 0.0))
        axes.bar([1], [5], 1.0, color="#123456")
        if speaks:
            tell(axes, "a < b: 5 °C", 0.5, 0.0, 1.0, 5.0)
        axes.set_xlim(0, 2)
        axes.set_ylim(0, 10)
        return figure

    written = {}
    for speaks in (True, False):
        with style.styled("x"):
            svg, pdf = style.save(bar(speaks), tmp_path / str(speaks))
        written[speaks] = svg.read_text("utf-8"), pdf.read_bytes()
    assert written[True][1] == written[False][1]
    root = ElementTree.fromstring(written[True][0])
    (mark,) = (each for each in root.iter() if each.tag.endswith("rect") and len(each))
    assert [child.text for child in mark] == ["a < b: 5 °C"]
    # Two inches are 144 points: the axes from 36 to 108, and half of either way is the bar.
    assert {name: float(mark.attrib[name]) for name in ("x", "y", "width", "height")} == {
        "x": 54.0,
        "y": 72.0,
        "width": 36.0,
        "height": 36.0,
    }
    assert "<title>" not in written[False][0]


def test_a_shortened_svg_draws_the_same():
    svg = (
        b'<!DOCTYPE svg>\n<svg width="9pt">\n <g id="a">\n  <g id="b"/>\n'
        b'  <path id="used" d="M 1.004 2 \nL 3.25 2 \nL 3.25 -4.999 \nL 5 6 z" '
        b'style="fill: none; stroke: #000000"/>\n'
        b'  <text style="font-size: 7px; font-family: \'X\', serif; text-anchor: end" x="1.239" '
        b'y="2" transform="rotate(-0 1.239 2)">L 1 2</text>\n  <use href="#used" x="-0.001"/>\n'
        b" </g>\n</svg>"
    )
    assert shortened(svg) == (
        b'<svg font-family="\'X\', serif" width="9pt">'
        b'<path id="used" d="M1 2H3.25V-5L5 6z" style="fill:none;stroke:#000000"/>'
        b'<text style="font-size:7px;text-anchor:end" x="1.24" y="2">L 1 2</text>'
        b'<use href="#used" x="0"/></svg>'
    )
