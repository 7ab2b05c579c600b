"""The README's picture: which cells are its frontier, and what it shows without telemetry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from research.pages import triptych, triptych_panels
from tests.report.sweep import Planned, write_sweep
from tests.texts import numbers
from workflow_lib.records.contract import STEPS
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.telemetry_columns import POWER_SAMPLES
from workflow_lib.results import run_directory
from workflow_lib.table_files import table

BEGUN_S = 1_700_000_000.0


def planned(layout: str, tokens_per_s: float, tokens_per_j: float, **training: Any) -> Planned:
    """A cell of eight GPUs with one run, which began at ``BEGUN_S``."""
    precision = training.get("precision", "bf16")
    return Planned(
        f"{layout}-dp1",
        options=f"mb1-{precision}",
        digest=f"{tokens_per_s:08.0f}",
        training=training,
        measures={
            "tokens_per_s": tokens_per_s,
            "tokens_per_j": tokens_per_j,
            "started_unix_s": BEGUN_S,
        },
        of_gpus={"sm_clock_mean_mhz": 1500.0, "power_limit_w": 700.0},
    )


#: fast and thrifty, faster and less thrifty, worse than the first in both, and in fp8
CELLS = (
    planned("tp2", 800.0, 20.0),
    planned("pp2", 1600.0, 16.0),
    planned("tp4", 720.0, 10.0),
    planned("tp8", 2400.0, 25.0, precision="fp8"),
)


def write_raw(results: Path, cell: Planned) -> None:
    """Three measured steps of 2 s, and power of two GPUs every 0.5 s: 100 W a second and GPU."""
    paths = RunPaths(run_directory(results, cell.id, 1))
    for path in (paths.rank_steps(0), paths.telemetry_start("node1")):
        path.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        {
            "step": number,
            "phase": "measured",
            "started_unix_s": BEGUN_S + 2 * number,
            "ended_unix_s": BEGUN_S + 2 * number + 2,
            "tokens": 8,
        }
        for number in range(3)
    ]
    table(steps, STEPS).write_csv(paths.rank_steps(0))
    paths.telemetry_start("node1").write_text("{}", encoding="utf-8")
    samples = [
        {
            "driver_time_us": int((BEGUN_S + 0.5 * number) * 1e6),
            "gpu": gpu,
            "power_mw": 50_000 * number * (gpu + 1),
        }
        for number in range(13)
        for gpu in (0, 1)
    ]
    table(samples, POWER_SAMPLES).write_csv(paths.power_samples("node1"))


def test_the_frontier_has_the_cells_of_a_precision_that_no_other_beats(tmp_path):
    sweeps = triptych.read([write_sweep(tmp_path, CELLS)])
    axes = Figure().subplots()
    triptych_panels.performance(axes, triptych.cells_of(sweeps))
    lines = [
        [tuple(point) for point in line.get_xydata()]
        for line in axes.lines
        if line.get_linestyle() == "--"
    ]
    assert lines == [
        [(100.0, pytest.approx(1 / 20)), (200.0, pytest.approx(1 / 16))],
        [(300.0, pytest.approx(1 / 25))],
    ]
    labels = {text.get_text() for text in axes.texts}
    assert {"ours tp2", "ours pp2", "ours tp8 fp8"} <= labels
    assert "ours tp4" not in labels


def test_power_is_that_of_the_middle_step_from_its_start(tmp_path):
    sweep = write_sweep(tmp_path, CELLS[:1])
    write_raw(tmp_path, CELLS[0])
    (read,) = triptych.read([sweep])
    figure = Figure()
    triptych_panels.power(figure, figure.subplots(), read.directory, read.side)
    strip = figure.axes[-1]
    shown = {line.get_label(): line for line in strip.lines}
    assert shown["GPU 0"].get_xydata().tolist() == [
        [second, 200.0 + 100 * second] for second in (0.0, 0.5, 1.0, 1.5, 2.0)
    ]
    assert list(shown["GPU 1"].get_ydata()) == [400.0 + 100 * half for half in range(5)]
    (limit,) = (line for label, line in shown.items() if numbers(label) == [700.0])
    assert set(limit.get_ydata()) == {700.0}


def test_a_run_without_samples_has_an_empty_strip(tmp_path):
    sweeps = triptych.read([write_sweep(tmp_path, CELLS[:2])])
    write_raw(tmp_path, CELLS[0])
    figure = Figure()
    triptych_panels.power(figure, figure.subplots(), sweeps[0].directory, sweeps[0].side)
    _, pp2, tp2 = figure.axes
    assert [len(axes.texts) for axes in (pp2, tp2)] == [1, 0]
    assert pp2.patch.get_hatch()
    assert "<svg" in triptych.svg(sweeps, wide=True)


def test_nothing_measured_gives_three_panels_that_say_so(tmp_path):
    sweeps = triptych.read([write_sweep(tmp_path, [Planned("tp1", outcomes=(None,))])])
    figure = triptych.figure(sweeps, wide=False)
    assert [bool(axes.patch.get_hatch()) for axes in figure.axes] == [True] * 3


def test_a_run_of_two_sweeps_has_one_mark_for_each_gpu(tmp_path):
    sweep = write_sweep(tmp_path, CELLS[:2])
    sweeps = triptych.read([sweep, sweep])
    axes = Figure().subplots()
    triptych_panels.thermal(axes, triptych.cells_of(sweeps), triptych.gpus_of(sweeps))
    assert [line.get_label() for line in axes.lines] == ["pp2", "tp2"]
    # GPU 0 has 58 °C, and each further one a degree more.
    assert [sorted(line.get_xdata()) for line in axes.lines] == [[58.0 + g for g in range(8)]] * 2
    said = triptych.caption(sweeps)
    assert re.findall(r"\d+ (?:run|cell|set)s?", said) == ["2 runs", "2 cells", "1 set"]
    assert re.findall(r"\d{4}-\d\d-\d\d", said) == ["2023-11-14"]


def test_the_same_tables_give_the_same_bytes(tmp_path):
    sweep = write_sweep(tmp_path, CELLS)
    write_raw(tmp_path, CELLS[0])
    for wide in (True, False):
        one, other = (triptych.svg(triptych.read([sweep]), wide=wide) for _ in range(2))
        assert one == other
