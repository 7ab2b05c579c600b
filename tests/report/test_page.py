"""The page: complete, self-contained, and safe whatever the names in it."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from workflow_lib.analysis.tables import read_table, table, write_table
from workflow_lib.records import PLAN, Outcome, RunPaths
from workflow_lib.report.__main__ import main
from workflow_lib.report.figures import read_tables, write_figures
from workflow_lib.results import run_directory

from .sweep import Planned, write_sweep

HOSTILE = "<script>alert('x')</script>\"&$\\frac$"


class Page(HTMLParser):
    """Tags with their attributes, and the text outside style and script."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = source
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.pieces: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("style", "script"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open:
            self.pieces.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.pieces))


def draw(directory: Path) -> None:
    write_figures(read_tables(directory), directory / "figures", formats=("svg",))


def build(
    tmp_path: Path,
    cells: list[Planned],
    *extra: str,
    overhead: Sequence[dict[str, Any]] = (),
) -> Page:
    """Write a sweep, its figures and its page."""
    directory = write_sweep(tmp_path, cells, overhead)
    draw(directory)
    assert write(tmp_path, directory, *extra) == 0
    return Page((directory / "report.html").read_text(encoding="utf-8"))


def write(results: Path, directory: Path, *extra: str) -> int:
    command = ["page", "--sweep", "made-up", "--results", str(results)]
    return main([*command, "--directory", str(directory), *extra])


def test_the_page_tells_what_there_is_and_what_became_of_it(tmp_path: Path) -> None:
    page = build(
        tmp_path,
        [
            Planned("tp1", outcomes=(Outcome.COMPLETED,) * 3),
            Planned("tp2", measures={"tokens_per_s": 99_000.0, "temperature_mean_c": 80.0}),
            Planned("tp4", outcomes=(Outcome.OUT_OF_MEMORY,), cause="rank 3 wanted 2.25 GiB"),
            Planned("tp8", outcomes=(Outcome.TIMEOUT, None), cause="Slurm ended it at 30 min"),
            Planned("tp16", reason="needs 214 GB, a GPU has 141 GB"),
        ],
        "--description",
        "Every layout of the study.",
    )
    assert "Every layout of the study." in page.text
    assert "2 of 5 cells with a completed run" in page.text
    assert "4 of 7 runs completed" in page.text
    assert "Fastest: tp2 on h200 (8 GPUs), 99,000 tokens/s." in page.text
    # tp1's repeats have 62, 63 and 64 °C, and 40 001 to 40 003 tokens/s.
    assert "Coolest (mean): tp1 on h200 (8 GPUs), 63.0 °C." in page.text
    assert "40,001–40,003" in page.text
    for cause in (
        "rank 3 wanted 2.25 GiB",
        "Slurm ended it at 30 min",
        "needs 214 GB, a GPU has 141 GB",
        "the run has not ended",
    ):
        assert cause in page.text
    for limit in ("±6 %", "component-level", "lower bounds", "counts time twice"):
        assert limit in page.text
    assert "SIMULATED" not in page.text
    # 8 cells feasible at 4 GPU-hours each: tp1, tp2, tp4, tp8.
    assert "16.0 GPU-hours estimated" in page.text
    assert "python -m workflow_lib.analysis collect" in page.text


def test_inference_has_its_own_columns_and_training_does_not_show_them(tmp_path: Path) -> None:
    decoding = {"decode_tokens_per_s_per_gpu": 321.0}
    generating = Planned("tp1", workload="inference", measures=decoding)
    other = Planned("tp4", workload="inference")
    alone = build(tmp_path / "alone", [generating, other]).text
    assert "Fastest decoding: tp1 on h200 (8 GPUs), 321 tokens/s per GPU." in alone
    assert "Decoding per GPU" in alone
    assert "MFU, causal" not in alone
    assert "Fastest: " not in alone

    training = build(tmp_path / "training", [Planned("tp1")]).text
    assert "Decoding per GPU" not in training
    assert "Fastest decoding" not in training

    both = build(tmp_path / "both", [generating, Planned("tp2")]).text
    assert "Decoding per GPU" in both
    assert "MFU, causal" in both
    assert "Fastest" not in both, "a cell of each workload has none to be compared with"


def test_energies_state_their_systematic_error_where_it_is_known(tmp_path: Path) -> None:
    known = build(tmp_path / "known", [Planned()]).text
    assert "Power and efficiency have a systematic error of ±6 % (NVIDIA H200)." in known
    assert "Every energy and power has a systematic error of ±6 % (NVIDIA H200)" in known
    assert "Energy and power have a systematic error of ±6 % (NVIDIA H200)." in known

    other = {"energy_systematic_share": None, "gpu_name": "AMD Instinct MI250X"}
    both = build(tmp_path / "both", [Planned(), Planned("tp4", measures=other)]).text
    error = "unknown size (AMD Instinct MI250X), ±6 % (NVIDIA H200)"
    assert f"Power and efficiency have a systematic error of {error}." in both
    # In the figure's caption, too.
    assert both.count(error) == 4

    nothing = {"energy_j": None, "energy_systematic_share": None}
    none = build(tmp_path / "none", [Planned(measures=nothing)]).text
    assert "No cell has an energy" in none
    assert "systematic error of" not in none
    assert "Energy is the trapezoid" not in none


def test_simulated_power_has_no_sensor_and_no_error(tmp_path: Path) -> None:
    values = {"energy_systematic_share": None, "gpu_name": "simulated GPU"}
    text = build(tmp_path / "all", [Planned(simulated=True, measures=values)]).text
    assert text.count("Simulated power has no sensor") == 1
    assert "unknown size" not in text
    assert "systematic error of" not in text

    simulated = Planned("tp4", simulated=True, measures=values)
    text = build(tmp_path / "some", [Planned(), simulated]).text
    assert text.count("Simulated power has no sensor") == 1
    assert "that was measured has a systematic error of ±6 % (NVIDIA H200), and" in text


def test_both_energies_and_their_difference_are_shown(tmp_path: Path) -> None:
    energies = {"energy_j": 250_000.0, "energy_counter_j": 249_500.0, "energy_difference": -0.002}
    page = build(tmp_path, [Planned(measures=energies)])
    for heading in (
        "Energy of all GPUs, trapezoid kJ",
        "Energy of all GPUs, counter kJ",
        "Peak of one package, at least W",
        "Idle power of all GPUs, before W",
    ):
        assert heading in page.text
    # 250 and 249.5 kJ, less 0.2 %, both ± 6 %.
    assert "250 250 −0.20 6.00" in page.text


def test_noise_of_the_arithmetic_is_zero(tmp_path: Path) -> None:
    energies = {"energy_j": 1000.0, "energy_counter_j": 1000.0, "energy_difference": 3.71e-12}
    assert "1.00 1.00 0.00 6.00" in build(tmp_path, [Planned(measures=energies)]).text


def test_what_no_cell_has_is_no_column_but_is_named_with_its_one_reason(tmp_path: Path) -> None:
    whole = build(tmp_path / "with", [Planned(), Planned("tp4", measures={"mfu_6n": None})]).text
    assert "MFU, 6N %" in whole
    assert "left out" not in whole

    lacking = {
        **dict.fromkeys(("mfu_6n", "mfu_causal", "node_energy_j", "step_time_s")),
        "missing_reasons": json.dumps(
            {"mfu_6n": "no peak is known", "mfu_causal": "no peak is known", "node_energy_j": "a"}
        ),
    }
    other = {**lacking, "missing_reasons": lacking["missing_reasons"].replace('"a"', '"b"')}
    cells = [Planned(measures=lacking), Planned("tp4", measures=other), Planned("x", reason="big")]
    text = build(tmp_path / "without", cells).text
    because = "Columns that are left out, because no cell has a value:"
    assert f"{because} “Step time”; “MFU, 6N”, “MFU, causal” (no peak is known). " in text
    assert f"{because} “Energy of whole nodes”. " in text
    assert "MFU, 6N %" not in text
    assert "Energy of whole nodes kJ" not in text


def test_columns_stay_where_nothing_completed(tmp_path: Path) -> None:
    text = build(tmp_path, [Planned(outcomes=(Outcome.TIMEOUT,))]).text
    assert "MFU, 6N %" in text
    assert "left out" not in text


_WARMING = {
    "steady": False,
    "steady_from_step": None,
    "step_time_drift": 0.031,
    "power_drift": -0.012,
    "temperature_drift_c": 4.25,
}
_SHORT = {
    "steady": None,
    "steady_from_step": None,
    "missing_reasons": '{"steady": "2 blocks are too few"}',
}


def test_cells_are_told_by_what_became_of_their_steady_state(tmp_path: Path) -> None:
    steady = {"steady": True, "steady_from_step": 12}
    cells = [
        Planned("tp1", measures=steady),
        Planned("tp2", measures=steady),
        Planned("tp4", measures=_WARMING),
        Planned("tp8", measures=_SHORT),
        Planned("tp16", measures=_SHORT),
    ]
    text = build(tmp_path / "all", cells).text
    where = "(gpt3-175b on h200)"
    assert f"Became steady from step 12: tp1 {where}; tp2 {where} Never" in text
    drifts = "step time +3.1 %, power −1.2 %, temperature +4.2 °C"
    assert f"Never became steady , with their drift tp4 {where}: {drifts} Could" in text
    assert f"Could not be told 2 blocks are too few: tp8 {where}; tp16 {where} " in text
    # In the table: a null is not steady.
    for label, state in (("tp1", "from step 12"), ("tp4", "never"), ("tp8", "unknown")):
        assert f"{label} gpt3-175b · h200 {state} " in text

    always = build(tmp_path / "always", [Planned(measures=steady)]).text
    assert "Became steady" in always
    assert "Never became steady" not in always
    assert "Could not be told" not in always


def test_runs_of_a_cell_that_differ_in_steadiness_are_counted(tmp_path: Path) -> None:
    cell = Planned(
        "tp1",
        outcomes=(Outcome.COMPLETED,) * 4,
        measures={"steady": True},
        of_run={1: {"steady_from_step": 14}, 2: {"steady_from_step": 9}, 3: _WARMING, 4: _SHORT},
    )
    text = build(tmp_path, [cell]).text
    assert "from steps 9–14: tp1 (gpt3-175b on h200, 2 of 4 runs)" in text
    assert "tp1 (gpt3-175b on h200, 1 of 4 runs): step time +3.1 %" in text
    assert "2 blocks are too few: tp1 (gpt3-175b on h200, 1 of 4 runs)" in text
    assert "from steps 9–14 (2 runs), never (1 run), unknown (1 run)" in text


def test_training_that_was_not_watched_keeps_its_figures(tmp_path: Path) -> None:
    unwatched = Planned(
        "tp4",
        outcomes=(Outcome.TELEMETRY_INVALID,),
        cause="GPU 3 has no power sample for 7.0 s",
        measures={
            "energy_j": None,
            "step_time_s": 1.25,
            "tokens_per_s_per_gpu": 4321.0,
            "mfu_causal": 0.4321,
            "loss_last": 2.5,
        },
    )
    page = build(tmp_path, [Planned(), unwatched])
    assert "GPU 3 has no power sample for 7.0 s" in page.text
    assert "Trained to the end, but not watched as they should be" in page.text
    assert f"{unwatched.id} 1 1.25 4,321 43.2 2.50" in page.text
    assert "Trained to the end" not in build(tmp_path / "other", [Planned()]).text


def _overhead(cell: Planned, rate_hz: float, **values: Any) -> dict[str, Any]:
    return {
        "cell": cell.id,
        "run": 1,
        "simulated": cell.simulated,
        "sample_rate_hz": rate_hz,
        "blocks": 12,
        "steps": 110,
        "step_time_s": 1.07,
        "pairs": 12,
        "sampler_cpu_share": 0.0043,
        "sampler_memory_bytes": 21_300_000.0,
        "achieved_rate_hz": rate_hz,
        "late_share": 0.0001,
        "missing_reasons": "{}",
        **values,
    }


def test_what_sampling_costs_is_shown_where_it_was_measured(tmp_path: Path) -> None:
    cell = Planned("tp8", simulated=True)
    slow = {"slowdown": 0.00031, "slowdown_low": -0.0001, "slowdown_high": 0.00082}
    rows = [
        _overhead(cell, 50.0, **slow, achieved_rate_hz=49.98),
        _overhead(cell, 0.0, sampler_cpu_share=0.0001, pairs=None, late_share=None),
        _overhead(
            cell,
            1.0,
            sampler_cpu_share=None,
            slowdown=0.25,
            pairs=2,
            missing_reasons='{"slowdown_low": "2 pairs are too few"}',
        ),
    ]
    page = build(tmp_path / "measured", [cell, Planned("tp4")], overhead=rows)
    assert "What sampling costs" in page.text
    assert "An interval that contains 0 means that no slow-down was found" in page.text
    # Rate, slow-down, interval, pairs, steps, step time, CPU, memory, achieved rate, late share.
    label = "tp8 SIMULATED GPU readings 1"
    assert f"{label} off reference – 110 1.07 0.010 21.3 – –" in page.text
    assert f"{label} 1 25 2 pairs are too few 2 110 1.07 – 21.3 1.000 0.010" in page.text
    assert f"{label} 50 0.031 −0.010 to 0.082 12 110 1.07 0.43 21.3 49.98 0.010" in page.text
    assert page.text.index(f"{label} 1 25") < page.text.index(f"{label} 50")

    assert "What sampling costs" not in build(tmp_path / "other", [Planned()]).text


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    page = build(tmp_path, [Planned(), Planned("tp4", simulated=True)])
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base", "form")
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/png;base64,")), (tag, name, value)
    assert "@import" not in page.source
    assert "fetch(" not in page.source
    assert set(re.findall(r"url\((.)", page.source)) <= {"#"}
    assert sum(tag == "svg" for tag, _ in page.tags) == 2


def test_ids_are_unique_and_references_lead_somewhere(tmp_path: Path) -> None:
    page = build(tmp_path, [Planned(), Planned(model="mixtral-8x7b")])
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    references = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', page.source))
    assert {first or second for first, second in references} <= set(ids)


def test_simulated_readings_have_a_banner(tmp_path: Path) -> None:
    assert "SIMULATED GPU readings. Every power" in build(tmp_path, [Planned(simulated=True)]).text


def test_partly_simulated_readings_have_one_too(tmp_path: Path) -> None:
    page = build(tmp_path, [Planned("tp1", simulated=True), Planned("tp2")])
    assert "SIMULATED GPU readings. Some power" in page.text


def test_names_are_text_whatever_they_hold(tmp_path: Path) -> None:
    hostile = HOSTILE.replace("/", "∕")
    page = build(
        tmp_path,
        [
            Planned(model=hostile, options=hostile),
            Planned(model=hostile, options="b", outcomes=(Outcome.ERROR,), cause=HOSTILE),
            Planned("tp4", reason=HOSTILE),
        ],
        "--description",
        HOSTILE,
    )
    assert [tag for tag, _ in page.tags].count("script") == 1, "the page's own"
    assert page.text.count("alert(") >= 5
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_a_sweep_of_which_nothing_completed_has_a_page(tmp_path: Path) -> None:
    page = build(
        tmp_path,
        [Planned(outcomes=(None,)), Planned("tp4", reason="too large")],
    )
    assert "gpt3-175b: no cell has completed." in page.text
    assert "0 of 2 cells" in page.text
    assert "No run has recorded its environment yet." in page.text


def test_a_sweep_without_cells_has_a_page(tmp_path: Path) -> None:
    assert "There are no cells to draw." in build(tmp_path, []).text


def test_environments_are_listed_by_distinct_value(tmp_path: Path) -> None:
    cells = [Planned(outcomes=(Outcome.COMPLETED,) * 2), Planned("tp4")]
    page = build(tmp_path, cells)
    assert "packages.torch 2.13.0" in page.text
    assert "node node1 (2 runs) ; node2 (1 run)" in page.text
    assert "nvidia_driver –" in page.text
    assert "Recorded from 2023-11-14 22:13 UTC" in page.text


def test_a_run_without_an_environment_is_counted(tmp_path: Path) -> None:
    cell = Planned()
    directory = write_sweep(tmp_path, [cell])
    RunPaths(run_directory(tmp_path, cell.id, 1)).environment.unlink()
    draw(directory)
    assert write(tmp_path, directory) == 0
    text = Page((directory / "report.html").read_text(encoding="utf-8")).text
    assert "1 ended run has no record of the environment." in text


def test_what_completed_runs_could_not_measure_is_told_once_a_reason(tmp_path: Path) -> None:
    def lacking(*columns: str) -> dict[str, Any]:
        reasons = dict.fromkeys(columns, "no peak is known")
        return {**dict.fromkeys(columns), "missing_reasons": json.dumps(reasons)}

    one = lacking("mfu_6n", "mfu_causal", "prefill_time_s")
    text = build(tmp_path, [Planned(measures=one), Planned("tp4", measures=lacking("mfu_6n"))]).text
    # Training has no prefill, for which no reason is worth a word.
    assert "no peak is known mfu_6n, mfu_causal (1 run) 2" in text


def test_cells_that_only_a_digest_tells_apart_are_explained(tmp_path: Path) -> None:
    cells = [
        Planned("tp1", digest=digest, record={"id": digest, "training": {"seed": 7, "rate": rate}})
        for digest, rate in (("aaaaaaaa", 0.001), ("bbbbbbbb", 0.01))
    ]
    text = build(tmp_path / "alike", cells).text
    assert "tp1 aaaaaa (gpt3-175b on h200): training.rate 0.001 tp1 bbbbbb (" in text
    assert "Labels that end in a digest" in text
    assert "Labels that end" not in build(tmp_path / "other", [cells[0], Planned("tp4")]).text


def test_numbers_of_one_are_singular_and_one_cell_is_not_best(tmp_path: Path) -> None:
    cells = [Planned("tp1"), Planned("tp2", outcomes=(Outcome.TIMEOUT,)), Planned("x", reason="y")]
    text = build(tmp_path, cells).text
    for phrase in ("1 run failed", "1 cell infeasible", "0 runs out of memory", "1 of 1 run "):
        assert phrase in text
    assert "one cell alone has completed, tp1 : there is none to compare it with" in text
    for best in ("Fastest", "Coolest", "Most tokens"):
        assert best not in text


def test_the_commands_rebuild_this_page_and_reduce_no_other_runs(tmp_path: Path) -> None:
    description = "-- It's “all” of $HOME & <more>"
    results = tmp_path / "re sults"
    cells = [Planned("tp1"), Planned("tp2", outcomes=(None,)), Planned("tp4", reason="too large")]
    page = build(results, cells, f"--description={description}")
    (commands,) = re.findall(r"<pre>(.*?)</pre>", page.source, re.DOTALL)
    loop, *lines = html.unescape(commands).replace("\\\n", "").partition("done\n")[::2]
    runs = shlex.split(loop.partition(";")[0])
    assert runs == ["for", "run", "in", str(run_directory(results, cells[0].id, 1))]
    (collecting, figures, writing) = lines[0].splitlines()
    assert shlex.split(collecting)[:4] == ["python", "-m", "workflow_lib.analysis", "collect"]
    assert shlex.split(figures)[:4] == ["python", "-m", "workflow_lib.report", "figures"]
    path = results / "sweeps" / "made-up" / "report.html"
    path.unlink()
    assert main(shlex.split(writing)[3:]) == 0
    assert path.read_text(encoding="utf-8") == page.source


def test_an_unknown_estimate_makes_the_total_unknown(tmp_path: Path) -> None:
    directory = write_sweep(tmp_path, [Planned(), Planned("tp4")])
    plan = read_table(directory / "plan.parquet", PLAN).to_dicts()
    plan[0]["gpu_hours"] = None
    write_table(table(plan, PLAN), directory / "plan.parquet")
    draw(directory)
    assert write(tmp_path, directory) == 0
    text = Page((directory / "report.html").read_text(encoding="utf-8")).text
    assert "– GPU-hours estimated" in text


def test_the_page_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first = build(tmp_path, [Planned()]).source
    assert build(tmp_path, [Planned()]).source == first


def test_a_missing_figure_is_one_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_sweep(tmp_path, [Planned()])
    assert write(tmp_path, directory) == 1
    assert "parallelism-gpt3-175b.svg: no such figure; draw the figures" in capsys.readouterr().err
    assert not (directory / "report.html").exists()


@pytest.mark.parametrize(
    "planted",
    [
        "<script>alert(1)</script>",
        '<a href="https://example.org">x</a>',
        '<rect onload="alert(1)"/>',
        '<image xlink:href="//example.org/x.png"/>',
        "<foreignObject></foreignObject>",
    ],
)
def test_a_tampered_figure_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], planted: str
) -> None:
    build(tmp_path, [Planned()])
    directory = tmp_path / "sweeps" / "made-up"
    figure = directory / "figures" / "parallelism-gpt3-175b.svg"
    svg = figure.read_text(encoding="utf-8")
    figure.write_text(svg.replace("</svg>", planted + "</svg>"), encoding="utf-8")
    assert write(tmp_path, directory) == 1
    assert "it holds a script or a link" in capsys.readouterr().err
