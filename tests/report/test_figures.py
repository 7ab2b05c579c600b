"""The figures: what they say in words, and that they say it in the same bytes each time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from workflow_lib.records.outcomes import Outcome
from workflow_lib.report.__main__ import main
from workflow_lib.report.figures import figures, read_tables, style
from workflow_lib.report.figures.parallelism import _widen
from workflow_lib.report.figures.style import SIMULATED_MARK

from .sweep import Planned, write_sweep

COMPLETED = Outcome.COMPLETED


def draw(tmp_path: Path, cells: list[Planned], *kinds: str) -> dict[str, str]:
    """Write a sweep and draw it; returns the text elements of each SVG, by stem, a line each.

    Only figures whose stem begins with one of ``kinds``, where any is told.
    """
    texts = {}
    for entry in figures(read_tables(write_sweep(tmp_path, cells))):
        if entry.stem.startswith(kinds or ""):
            with style.styled(entry.stem):
                (path,) = style.save(entry.draw(), tmp_path / entry.stem, ("svg",))
            source = path.read_text("utf-8")
            texts[entry.stem] = "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", source))
    return texts


def test_there_is_a_figure_a_model_and_one_a_platform_and_model(tmp_path):
    directory = write_sweep(
        tmp_path,
        [
            Planned(),
            Planned(platform="h100"),
            Planned(model="mixtral-8x7b"),
            Planned(model="never-ran", outcomes=(None,)),
        ],
    )
    stems = sorted(entry.stem for entry in figures(read_tables(directory)))
    assert [stem for stem in stems if not stem.startswith(("energy", "throttling"))] == [
        "gpus-h100-gpt3-175b",
        "gpus-h200-gpt3-175b",
        "gpus-h200-mixtral-8x7b",
        "memory-h100-gpt3-175b",
        "memory-h200-gpt3-175b",
        "memory-h200-mixtral-8x7b",
        "parallelism-gpt3-175b",
        "parallelism-mixtral-8x7b",
        "parallelism-never-ran",
    ]


def test_the_parallelism_figure_names_cells_quantities_and_units(tmp_path):
    text = draw(
        tmp_path,
        [Planned(), Planned("tp4-pp8-dp1"), Planned("tp8-pp8-dp1", platform="h100")],
        "parallelism",
    )
    lines = text["parallelism-gpt3-175b"].splitlines()
    for label in ("tp2-pp16", "tp4-pp8", "tp8-pp8", "h100", "h200"):
        assert label in lines
    for unit in ("(°C)", "(W per GPU)", "(MHz)", "(tokens/J)", "(tokens/s)"):
        assert unit in lines
    assert "mean or rate" in lines
    assert "peak reading" in lines


def test_peaks_of_unlike_sensors_have_their_own_markers_and_their_names(tmp_path):
    samples = {"power_peak_w": 929.0, "power_peak_sensor": "driver's samples, 20 ms apart"}
    readings = {"power_peak_w": 703.0, "power_peak_sensor": "readings, each the mean of 1 s"}
    alike = write_sweep(
        tmp_path / "alike", [Planned("tp1", measures=samples), Planned("tp2", measures=samples)]
    )
    unlike = write_sweep(
        tmp_path / "unlike", [Planned("tp1", measures=samples), Planned("tp2", measures=readings)]
    )

    one, two = (figures(read_tables(each))[0] for each in (alike, unlike))

    assert f"({samples['power_peak_sensor']})" in one.caption
    assert f"(triangles: {samples['power_peak_sensor']}; " in two.caption
    assert f" triangles: {readings['power_peak_sensor']})" in two.caption
    with style.styled("peaks"):
        power = two.draw().axes[1]
    peaks = {
        line.get_marker(): list(line.get_ydata())
        for line in power.lines
        if line.get_marker() in ("^", "v")
    }
    assert peaks == {"^": [929.0], "v": [703.0]}


def test_a_cell_without_a_result_is_labelled_with_its_fate(tmp_path):
    text = draw(
        tmp_path,
        [
            Planned("tp1"),
            Planned("tp2", outcomes=(Outcome.OUT_OF_MEMORY,)),
            Planned("tp4", outcomes=(None,)),
            Planned("tp8", reason="does not fit"),
            Planned("tp16", outcomes=(Outcome.COMMUNICATION_TIMEOUT,)),
        ],
    )
    lines = text["parallelism-gpt3-175b"].splitlines()
    for fate in ("out of memory", "not run", "infeasible"):
        assert lines.count(fate) == 1
    assert "comm. timeout" in lines
    of_gpus = text["gpus-h200-gpt3-175b"].splitlines()
    assert "out of memory" in of_gpus
    assert "infeasible" not in of_gpus
    assert "tp8" not in of_gpus


def test_a_missing_measure_of_a_completed_cell_says_no_data(tmp_path):
    cells = [Planned("tp1"), Planned("tp2", measures={"tokens_per_j": None})]
    lines = draw(tmp_path, cells, "parallelism")["parallelism-gpt3-175b"].splitlines()
    assert lines.count("no data") == 1


def test_a_panel_without_any_value_is_left_out_and_not_announced(tmp_path):
    cold = {"temperature_mean_c": None, "temperature_peak_c": None, "tokens_per_j": None}
    directory = write_sweep(
        tmp_path, [Planned("tp1", measures=cold), Planned("tp2", measures=cold)]
    )
    entry = figures(read_tables(directory))[0]
    assert entry.title.endswith(": power, clock and throughput")
    assert len(entry.draw().axes) == 3


def test_cells_that_generate_show_what_they_decode(tmp_path):
    decoding = {"decode_tokens_per_s_per_gpu": 321.0, "decode_tokens_per_j": 0.5}
    trained = {"tokens_per_s": None, "tokens_per_j": None}
    generating = Planned("tp1", workload="inference", measures=decoding | trained)
    directory = write_sweep(tmp_path / "one", [generating])
    entry = figures(read_tables(directory))[0]
    assert entry.title.endswith("decoding efficiency and decoding throughput")
    failed = Planned("tp1", workload="inference", outcomes=(Outcome.TIMEOUT,))
    lines = draw(tmp_path / "failed", [failed])["parallelism-gpt3-175b"].splitlines()
    assert "(tokens/s/GPU)" in lines
    assert "(tokens/s)" not in lines


def test_figures_without_any_value_are_left_out_unless_nothing_completed(tmp_path):
    drawn = (
        *("temperature_mean_c", "temperature_peak_c", "power_per_gpu_mean_w", "power_peak_w"),
        *("sm_clock_mean_mhz", "tokens_per_j", "tokens_per_s", "memory_used_peak_bytes"),
    )
    shares = [f"throttle_{kind}_share" for kind in ("power", "thermal", "brake")]
    of_gpus = dict.fromkeys(("temperature_mean_c", *shares))
    empty = Planned(measures=dict.fromkeys((*drawn, *shares)), of_gpus=of_gpus)
    assert draw(tmp_path / "empty", [empty]) == {}
    failed = draw(tmp_path / "failed", [Planned(outcomes=(Outcome.TIMEOUT,))])
    assert list(failed) == ["parallelism-gpt3-175b"]
    lines = failed["parallelism-gpt3-175b"].splitlines()
    for word in ("timeout", "(°C)", "(W per GPU)", "(tokens/s)"):
        assert word in lines


def test_a_share_that_is_zero_everywhere_says_none_on_the_whole_scale(tmp_path):
    lines = draw(tmp_path, [Planned()], "gpus")["gpus-h200-gpt3-175b"].splitlines()
    assert "thermal slowdown: none" in "\n".join(lines)
    # The colour bars of the power cap, at 0.9, and of thermal slowdown.
    directory = write_sweep(tmp_path / "again", [Planned()])
    (entry,) = (e for e in figures(read_tables(directory)) if e.stem.startswith("gpus"))
    heat_map = entry.draw()
    limits = [axes.images[0].get_clim() for axes in heat_map.axes if axes.images]
    assert limits == [(58.0, 65.0), (0.0, 90.0), (0.0, 100.0)]


def test_temperatures_close_together_have_a_decimal(tmp_path):
    close = Planned(of_gpus={"temperature_mean_c": 58.04})
    assert draw(tmp_path, [close])["gpus-h200-gpt3-175b"].splitlines().count("58.0") >= 8


def test_nothing_is_drawn_for_a_cell_without_values(tmp_path):
    directory = write_sweep(tmp_path, [Planned("tp1"), Planned("tp2", outcomes=(None,))])
    entry = figures(read_tables(directory))[0]
    for axes in entry.draw().axes:
        drawn = [x for line in axes.lines for x in line.get_xdata()]
        assert drawn
        # All markers stand over the first cell.
        assert all(abs(x) < 0.5 for x in drawn)


def test_options_are_in_the_label_where_they_differ(tmp_path):
    cells = [
        Planned(options="mb1-bf16", outcomes=(COMPLETED, Outcome.TIMEOUT, COMPLETED)),
        Planned(options="mb2-bf16-overlap"),
    ]
    lines = draw(tmp_path, cells, "parallelism")["parallelism-gpt3-175b"].splitlines()
    # Incomplete repeats are counted.
    assert "tp2-pp16 mb1 (2/3)" in lines
    assert "tp2-pp16 mb2 overlap" in lines


def test_the_heat_map_marks_front_and_rear_and_numbers_its_fields(tmp_path):
    lines = draw(tmp_path, [Planned()], "gpus")["gpus-h200-gpt3-175b"].splitlines()
    assert "Mean temperature" in lines
    assert "software power cap" in "\n".join(lines)
    assert {"°C", "% of time"} <= set(lines)
    # Four GPUs each, in three panels.
    assert (lines.count("F"), lines.count("R")) == (12, 12)
    assert "In power-brake slowdown" not in lines
    # GPU 6, whose number the colour bar does not have.
    assert "64" in lines
    # With less room, a number a node, and bars instead of letters.
    lines = draw(tmp_path / "wide", [Planned(nodes=8)], "gpus")["gpus-h200-gpt3-175b"].splitlines()
    assert {"1", "8"} <= set(lines)
    assert "▬" in "\n".join(lines)
    assert "F" not in lines


@pytest.mark.parametrize("simulated", [True, False])
def test_simulated_readings_are_marked_in_every_figure(tmp_path, simulated):
    texts = draw(tmp_path, [Planned("tp1", simulated=simulated), Planned("tp2")])
    assert len(texts) > 2
    assert {SIMULATED_MARK in text for text in texts.values()} == {simulated}


def test_forty_cells_are_split_over_figures_and_keep_their_labels(tmp_path):
    cells = [Planned(f"tp{number}") for number in range(2, 42)]
    texts = draw(tmp_path, cells, "gpus", "parallelism")
    assert sorted(texts) == [
        *(f"gpus-h200-gpt3-175b-{part}" for part in (1, 2, 3)),
        *(f"parallelism-gpt3-175b-h200-{part}" for part in (1, 2, 3)),
    ]
    for kind in ("gpus", "parallelism"):
        lines = "\n".join(text for stem, text in texts.items() if stem.startswith(kind)).split("\n")
        assert all(lines.count(cell.parallelism) >= 1 for cell in cells)
    assert "tp41" in texts["gpus-h200-gpt3-175b-3"].splitlines()


def test_missing_tables_are_one_message(tmp_path, capsys):
    assert main(["figures", "--tables", str(tmp_path), "--output", str(tmp_path / "f")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"figures: {tmp_path}/cells.parquet: ")
    assert said.count("\n") == 1


def test_a_panel_shows_at_least_two_percent_of_its_values():
    axes = Figure().subplots()
    axes.plot([0, 1], [300.0, 300.0005])
    _widen(axes)
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(6.0, rel=1e-3)
    assert (low + high) / 2 == pytest.approx(300.0, abs=0.001)
