"""What figures show is what their tables hold: bars, lines and fields read back from the axes."""

from __future__ import annotations

import math
import random
from typing import Any

import polars as pl
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.tables import KERNELS, SERIES, STEP_TIMES, TRACES
from workflow_lib.report.figures import (
    Tables,
    figures,
    figures_and_gaps,
    gpu_maps,
    kernels,
    microbatch,
    pipeline_ranks,
    power,
    style,
)
from workflow_lib.report.figures.energy import front, points
from workflow_lib.report.figures.kernel_times import folded, kernel_times
from workflow_lib.table_files import table

from .full_matrix import cell_row, gpu_rows, identity, kernel_rows, run_row, trace_row
from .looks import laid_out

TP2_PP2 = Degrees(tp=2, pp=2, dp=2)


def known(micro_batch: int = 1, recomputation: str = "full", overlap: bool = False) -> dict:
    """The IDENTITY of a cell of eight GPUs."""
    return identity("h200", "gpt3-175b", TP2_PP2, micro_batch, recomputation, overlap)


def drawn(kind: str, *cells: dict, **others: Any) -> Figure:
    """The only figure of a kind, laid out."""
    tables = Tables(cells, others.pop("runs", ()), others.pop("gpus", ()), **others)
    (entry,) = (entry for entry in figures(tables) if entry.stem.split("-")[0] == kind)
    return laid_out(entry)


def words(axes: Axes | Figure) -> list[str]:
    """Every text that is printed."""
    return [text.get_text() for text in axes.findobj(lambda a: hasattr(a, "get_text"))]


def bars_of(axes: Axes, label: str) -> list[Rectangle]:
    (container,) = (each for each in axes.containers if each.get_label() == label)
    return list(container.patches)


def classes_of(axes: Axes) -> dict[str, list[tuple[float, float]]]:
    """The begin and end of each stretch along x, by legend."""
    found = {}
    for patch in axes.patches:
        if isinstance(patch, PathPatch):
            corners = patch.get_path().vertices.tolist()
            ends = [(corners[k][0], corners[k + 1][0]) for k in range(0, len(corners), 5)]
            found[patch.get_label()] = [pytest.approx(end) for end in ends]
    return found


def test_optimisations_stand_beside_each_other_with_their_intervals_and_failures():
    base = cell_row(known(recomputation="none"), "out_of_memory")
    overlap = cell_row(
        known(recomputation="none", overlap=True), tokens_per_s_per_gpu=(500, 490, 520)
    )
    both = cell_row(known(overlap=True), tokens_per_s_per_gpu=(400, 400, 400))
    figure = drawn("optimisation", base, overlap, both)
    (axes,) = figure.axes
    (of_overlap,) = bars_of(axes, "overlap")
    (of_both,) = bars_of(axes, "both")
    assert (of_overlap.get_height(), of_both.get_height()) == (500, 400)
    assert of_overlap.get_x() < of_both.get_x()
    whiskers = [
        segment[:, 1].tolist()
        for lines in axes.collections
        if isinstance(lines, LineCollection)
        for segment in lines.get_segments()
    ]
    assert [490, 520] in whiskers
    assert "out of memory" in words(axes)
    assert axes.get_ylabel() == "Throughput\n(tokens/s/GPU)"


def test_a_micro_batch_that_failed_breaks_its_line_and_is_named_at_the_bottom():
    cells = [
        cell_row(known(1), tokens_per_j=1.0),
        cell_row(known(2), "infeasible"),
        cell_row(known(4), tokens_per_j=(3.0, 2.5, 3.5)),
    ]
    figure = drawn("microbatch", *cells)
    efficiency, failed = figure.axes
    assert efficiency.lines[0].get_ydata().tolist() == pytest.approx(
        [1.0, math.nan, 3.0], nan_ok=True
    )
    assert efficiency.lines[0].get_xdata().tolist() == [0, 1, 2]
    assert [text.get_text() for text in failed.texts] == ["infeasible"]
    # log2 of 2.
    assert failed.texts[0].get_position()[0] == 1
    assert [text.get_text() for text in failed.get_xticklabels()] == ["1", "2", "4"]


def kernels_of(*cells: dict, **seconds: float) -> dict[str, pl.DataFrame]:
    """Tables of cells whose ranks all have the same seconds over two steps, unless by rank."""
    rows = [row for cell in cells for rank in range(8) for row in kernel_rows(cell, rank, seconds)]
    ranks = [trace_row(cell, rank) for cell in cells for rank in range(8)]
    return {"kernels": table(rows, KERNELS), "traces": table(ranks, TRACES)}


def test_kernel_times_are_a_steps_stacked_by_class():
    cell = cell_row(known())
    frames = kernels_of(cell, gemm=6.0, all_reduce=2.0)
    figure = drawn("kernels", cell, **frames)
    # Two steps: 3 s of GEMM, then 1 s of all-reduce.
    assert classes_of(figure.axes[0]) == {"GEMM": [(0, 3)], "all-reduce": [(3, 4)]}
    # Of the bar this is communication.
    assert "25 %" in words(figure.axes[0])


def test_kernel_times_without_a_trace_say_why():
    done, other, failed = (known(size) for size in (1, 2, 4))
    cells = [
        cell_row(done),
        {**cell_row(other), "profiled_outcome": "timeout"},
        cell_row(failed, "out_of_memory"),
        cell_row(known(8)),
    ]
    text = words(drawn("kernels", *cells, **kernels_of(done, gemm=1.0)))
    assert {"profiled run: timeout", "out of memory"} <= set(text)
    # Nobody wanted it profiled.
    assert not any("mb8" in each for each in text)


def test_ranks_without_a_trace_are_counted_and_not_taken_for_zero():
    cell = cell_row(known())
    frames = kernels_of(cell, gemm=4.0)
    some = {name: frame.filter(pl.col("rank") < 6) for name, frame in frames.items()}
    figure = drawn("kernels", cell, **some)
    assert classes_of(figure.axes[0]) == {"GEMM": [(0, 2)]}
    assert any(text.endswith("(6/8)") for text in words(figure))
    # Of the second stage, ranks 4 to 7, ranks 4 and 5 are there; without any it says so.
    first = {name: frame.filter(pl.col("rank") < 4) for name, frame in frames.items()}
    assert "no trace" in words(drawn("pipeline", cell, **first))


def test_recomputation_is_off_in_one_bar_and_on_in_the_next():
    off, on = known(recomputation="none"), known()
    frames = [kernels_of(off, gemm=2.0), kernels_of(on, gemm=4.0)]
    joined = {name: pl.concat([frame[name] for frame in frames]) for name in frames[0]}
    figure = drawn("recomputation", cell_row(on), cell_row(off), **joined)
    assert classes_of(figure.axes[0]) == {"GEMM": [(0, 1), (0, 2)]}
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["tp2-pp2-dp2 off", "tp2-pp2-dp2 on"]


def test_each_pipeline_rank_has_the_mean_of_its_ranks():
    small, large = known(1), known(4)
    rows = [
        row
        for cell, factor in ((small, 1), (large, 10))
        for rank in range(8)
        # Ranks 0 to 3 are the first pipeline rank: 0, 2, 4 and 6 s over two steps.
        for row in kernel_rows(cell, rank, {"gemm": 2.0 * factor * (rank % 4 + rank // 4)})
    ]
    traces = [trace_row(cell, rank) for cell in (small, large) for rank in range(8)]
    frames = {"kernels": table(rows, KERNELS), "traces": table(traces, TRACES)}
    figure = drawn("pipeline", cell_row(small), cell_row(large), **frames)
    for axes, factor in zip(figure.axes, (1, 10), strict=True):
        (patch,) = (p for p in axes.patches if isinstance(p, PathPatch))
        corners = patch.get_path().vertices.tolist()
        tops = {round((corners[k][0] + corners[k + 2][0]) / 2): corners[k + 1][1] for k in (0, 5)}
        assert tops == pytest.approx({0: 1.5 * factor, 1: 2.5 * factor})


def test_ranks_that_trace_no_step_and_small_classes_are_told_apart_from_zero():
    cell = known()
    rows = list(kernel_rows(cell, 0, {"gemm": 100.0, "broadcast": 0.5}))
    ranks = [trace_row(cell, 0), trace_row(cell, 1, steps=0)]
    tables = Tables(
        (cell_row(cell),), (), (), kernels=table(rows, KERNELS), traces=table(ranks, TRACES)
    )
    times = kernel_times(tables, [cell["cell"]])
    assert times == {cell["cell"]: {0: {"broadcast": 0.25, "gemm": 50.0}}}
    # Under a hundredth of every bar it goes to the others of its kind; its seconds stay.
    assert folded([{"gemm": 50.0, "broadcast": 0.25}]) == [
        {"gemm": 50.0, "other_communication": 0.25}
    ]


def test_traffic_is_bytes_of_both_directions_over_the_measured_time():
    cell = known()
    rows = [
        {**row, "gpu_link_sent_bytes": 3e12, "gpu_link_received_bytes": 1e12}
        for row in gpu_rows(cell, 1, random.Random(1))
    ]
    runs = (run_row(cell, 1, measured_duration_s=20.0),)
    figure = drawn("traffic", cell_row(cell), runs=runs, gpus=tuple(rows))
    (panel,) = (axes for axes in figure.axes if axes.images)
    # 4 TB in 20 s.
    assert panel.images[0].get_array().tolist() == [[200.0] * 8]
    assert "NVLink" in panel.get_title("left")


def test_causes_of_throttling_are_stacked_and_an_unknown_one_is_named():
    shares = {"throttle_power_share": 0.5, "throttle_thermal_share": 0.25}
    cell = known()
    runs = tuple(
        run_row(cell, run, throttle_power_share=0.5, throttle_thermal_share=0.1 * run)
        for run in (1, 2, 4)
    )
    failed = cell_row(known(2), "node_failure")
    figure = drawn("throttling", cell_row(cell, **shares), failed, runs=runs)
    (axes,) = figure.axes
    capped, thermal = bars_of(axes, "power cap")[0], bars_of(axes, "thermal slowdown")[0]
    assert (capped.get_x(), capped.get_width()) == (0, 50)
    assert (thermal.get_x(), thermal.get_width()) == (50, 25)
    (whisker,) = (
        segment[:, 0].tolist()
        for lines in axes.collections
        if isinstance(lines, LineCollection)
        for segment in lines.get_segments()
    )
    # The runs' sums are 60, 70 and 90 %.
    assert whisker == pytest.approx([60, 90])
    for word in ("power brake unknown", "node failure"):
        assert word in words(axes)


def test_memory_shows_what_was_held_and_what_was_planned():
    cell = cell_row(
        known(),
        memory_peak_bytes=90e9,
        memory_reserved_peak_bytes=110e9,
        memory_used_peak_bytes=(115e9, 114e9, 116e9),
        memory_estimate_error=-0.2,
    )
    unknown = cell_row(known(2), memory_peak_bytes=80e9)
    (axes,) = drawn("memory", cell, unknown).axes
    places = {
        line.get_marker(): float(line.get_xdata()[0])
        for line in axes.lines
        if line.get_marker() != "None"
    }
    # 115 GB used, a fifth less planned.
    assert places == pytest.approx({"o": 90, "s": 110, "D": 115, "|": 92})
    bars = [list(line.get_xdata()) for line in axes.lines if line.get_linewidth() == 0.6]
    assert bars == [pytest.approx([114, 116])]
    # A cell whose use is unknown has no row.
    assert len(axes.get_yticks()) == 1


def test_the_front_holds_the_cells_that_no_other_beats_in_both():
    def cell(size: int, speed: float, yielded: float) -> dict:
        row = cell_row(known(size), tokens_per_s=speed, tokens_per_j=yielded)
        return {**row, "micro_batch_size": size}

    cells = [
        cell(1, 100.0, 4.0),  # the most efficient
        cell(2, 200.0, 2.0),  # the fastest
        cell(4, 150.0, 1.0),  # slower than 2 and costlier
        cell(8, 100.0, 2.0),  # as fast as 1, but costlier
    ]
    best = front(points(cells))
    assert [point.cell["micro_batch_size"] for point in best] == [1, 2]
    assert [point.j_per_token[0] for point in best] == [0.25, 0.5]
    figure = drawn("energy", *cells, cell_row(known(16), "out_of_memory"))
    line = figure.axes[0].lines[0]
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == [(100, 0.25), (200, 0.5)]
    assert "1 out of memory" in figure._supxlabel.get_text()
    # An interval of tokens a joule is turned round in joules a token.
    (point,) = points([cell_row(known(), tokens_per_s=1.0, tokens_per_j=(2.0, 1.0, 4.0))])
    assert point.j_per_token == (0.5, 0.25, 1.0)


def series(cell: dict, power_w: dict[int, list[float | None]], **others: Any) -> pl.DataFrame:
    """Rows of SERIES at 1, 3, 5 … s of each GPU, the higher ones at the rear."""
    rows = [
        {
            "cell": cell["cell"],
            "run": 1,
            "node": "node1",
            "gpu": gpu,
            "airflow": "rear" if gpu % 2 == 0 else "front",
            "elapsed_s": 2.0 * place + 1,
            "interval_s": 2.0,
            "power_w": value,
            **{name: of[gpu][place] for name, of in others.items()},
        }
        for gpu, values in power_w.items()
        for place, value in enumerate(values)
    ]
    return table(rows, SERIES)


def test_power_is_the_mean_over_gpus_and_steps_are_marked():
    cell = known()
    steps = [
        {"cell": cell["cell"], "run": 1, "step": 0, "elapsed_s": -4.0, "step_time_s": 4.0},
        {"cell": cell["cell"], "run": 1, "step": 1, "elapsed_s": 0.0, "step_time_s": 6.0},
        {"cell": cell["cell"], "run": 2, "step": 0, "elapsed_s": 3.0, "step_time_s": 1.0},
    ]
    figure = drawn(
        "power",
        cell_row(cell),
        cell_row(known(2), "timeout"),
        series=series(cell, {0: [300.0, 400.0, None], 1: [500.0, 600.0, 700.0]}),
        steps=table(steps, STEP_TIMES),
    )
    axes, failed = figure.axes
    (line,) = axes.lines
    assert line.get_xdata().tolist() == [1, 3, 5]
    assert line.get_ydata().tolist() == pytest.approx([400, 500, math.nan], nan_ok=True)
    (marks,) = (lines for lines in axes.collections if isinstance(lines, LineCollection))
    assert [segment[0][0] for segment in marks.get_segments()] == [-4, 0, 6]
    assert axes.get_xlim() == (-4, 6)
    assert words(failed).count("timeout") == 1


def test_slots_are_in_the_order_of_the_air_stream_over_time():
    cell = known()
    frame = series(
        cell,
        {0: [None, None], 1: [None, None]},
        temperature_c={0: [70.0, 71.0], 1: [60.0, None]},
        sm_clock_mhz={0: [1500.0, 1400.0], 1: [1900.0, 1900.0]},
    )
    figure = drawn("slots", cell_row(cell), series=frame)
    temperature, clock = (axes.images[0] for axes in figure.axes if axes.images)
    # GPU 1 is at the front.
    assert temperature.get_array().filled(-1).tolist() == [[60, -1], [70, 71]]
    assert clock.get_array().tolist() == [[1900, 1900], [1500, 1400]]
    assert (temperature.get_extent()[0], temperature.get_extent()[1]) == (0, 4)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["1", "0"]
    for label in ("Temperature (°C)", "SM clock (MHz)", "Time (s)"):
        assert label in words(figure)


def test_what_is_not_drawn_is_named_with_the_reason():
    cell = cell_row(known())
    lacking = '{"gpu_link_sent_bytes": "no links"}'
    gpus = tuple(
        {**row, "gpu_link_sent_bytes": None, "missing_reasons": lacking}
        for row in gpu_rows(known(), 1, random.Random(1))
    )
    why = dict(figures_and_gaps(Tables((cell,), (), gpus))[1])
    assert "series.parquet" in why[power.KIND.subject]
    assert "kernels.parquet" in why[kernels.KERNEL_CLASSES.subject]
    assert why[gpu_maps.TRAFFIC.subject] == "no links"
    assert microbatch.KIND.subject in why
    assert gpu_maps.TEMPERATURE.subject not in why
    empty = Tables((cell,), (), (), *(table([], c) for c in (STEP_TIMES, SERIES, KERNELS, TRACES)))
    why = dict(figures_and_gaps(empty)[1])
    assert "parquet" not in why[power.KIND.subject]
    assert "was profiled" in why[pipeline_ranks.KIND.subject]
    assert gpu_maps.TEMPERATURE.subject in why


def test_long_labels_are_broken():
    assert style.wrapped("tp2-pp2-dp8-ep8 mb4", 9) == "tp2-pp2-\ndp8-ep8\nmb4"
