"""What the page says of energies, of steadiness, of sampling, and of what could not be measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workflow_lib.records import CoolDown, Outcome

from .pages import build
from .sweep import Planned


def test_energies_state_their_systematic_error_where_it_is_known(tmp_path: Path) -> None:
    known = build(tmp_path / "known", [Planned()]).text
    assert "Power and efficiency have a systematic error of up to ±6.0 % (NVIDIA H200)." in known
    assert "Every energy and power has a systematic error of up to ±6.0 % (NVIDIA H200)" in known
    assert "Energy and power have a systematic error of up to ±6.0 % (NVIDIA H200)." in known

    other = {"energy_systematic_share": 0.151, "gpu_name": "AMD Instinct MI250X"}
    both = build(tmp_path / "both", [Planned(), Planned("tp4", measures=other)]).text
    error = "±15 % (AMD Instinct MI250X), ±6.0 % (NVIDIA H200)"
    assert f"Power and efficiency have a systematic error of up to {error}." in both
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
    assert "systematic error of" not in text

    simulated = Planned("tp4", simulated=True, measures=values)
    text = build(tmp_path / "some", [Planned(), simulated]).text
    assert text.count("Simulated power has no sensor") == 1
    assert "that was measured has a systematic error of up to ±6.0 % (NVIDIA H200), and" in text


def test_both_energies_and_their_difference_are_shown(tmp_path: Path) -> None:
    energies = {"energy_j": 250_000.0, "energy_integral_j": 249_500.0, "energy_difference": -0.002}
    page = build(tmp_path, [Planned(measures=energies)])
    for heading in (
        "Energy of all GPUs kJ",
        "Energy of all GPUs, integral of power kJ",
        "Peak power of a package, at least W",
        "Idle power of all GPUs, before W",
    ):
        assert heading in page.text
    # 250 and 249.5 kJ, less 0.2 %, both ± 6 %.
    assert "250 250 −0.20 6.00" in page.text


def test_noise_of_the_arithmetic_is_zero(tmp_path: Path) -> None:
    energies = {"energy_j": 1000.0, "energy_integral_j": 1000.0, "energy_difference": 3.71e-12}
    assert "1.00 1.00 0.00 6.00" in build(tmp_path, [Planned(measures=energies)]).text


def test_what_no_cell_has_is_no_column_but_is_named_with_its_one_reason(tmp_path: Path) -> None:
    whole = build(tmp_path / "with", [Planned(), Planned("tp4", measures={"mfu_6n": None})]).text
    assert "MFU, 6N %" in whole
    assert "are left out" not in whole

    lacking = {
        **dict.fromkeys(("mfu_6n", "mfu_causal", "node_energy_j", "step_time_s")),
        "missing_reasons": json.dumps(
            {"mfu_6n": "no peak is known", "mfu_causal": "no peak is known", "node_energy_j": "a"}
        ),
    }
    other = {**lacking, "missing_reasons": lacking["missing_reasons"].replace('"a"', '"b"')}
    cells = [Planned(measures=lacking), Planned("tp4", measures=other), Planned("x", reason="big")]
    text = build(tmp_path / "without", cells).text
    because = "These columns are left out because no cell has a value:"
    assert f"{because} “Step time”; “MFU, 6N”, “MFU, causal” (no peak is known). " in text
    assert f"{because} “Energy of whole nodes”. " in text
    assert "MFU, 6N %" not in text
    assert "Energy of whole nodes kJ" not in text


def test_columns_stay_where_nothing_completed(tmp_path: Path) -> None:
    text = build(tmp_path, [Planned(outcomes=(Outcome.TIMEOUT,))]).text
    assert "MFU, 6N %" in text
    assert "are left out" not in text


_WARMING = {
    "steady": False,
    "step_time_drift": 0.031,
    "power_drift": -0.012,
    "temperature_drift_c": 4.25,
}
_SHORT = {
    "steady": None,
    "missing_reasons": '{"steady": "2 blocks are too few"}',
    **dict.fromkeys(
        ("step_time_drift_margin", "power_drift_margin", "temperature_drift_margin_c"), None
    ),
}


def test_a_drift_that_no_line_describes_has_words_and_no_number(tmp_path: Path) -> None:
    stalled = {**_WARMING, "step_time_drift": -1.93, "power_drift": 0.6}
    text = build(tmp_path, [Planned("tp1", measures=stalled)]).text
    said = "step time fell by more than half, power rose by more than half, temperature +4.2 °C"
    assert said in text


def test_cells_are_told_by_what_became_of_their_steady_state(tmp_path: Path) -> None:
    steady = {
        "steady": True,
        "step_time_drift_margin": 0.004,
        "power_drift_margin": 0.002,
        "temperature_drift_margin_c": 0.5,
    }
    margins = "step time within ±0.40 %, power within ±0.20 %, temperature within ±0.50 °C"
    cells = [
        Planned("tp1", measures=steady),
        Planned("tp2", measures=steady),
        Planned("tp4", measures=_WARMING),
        Planned("tp8", measures=_SHORT),
        Planned("tp16", measures=_SHORT),
    ]
    text = build(tmp_path / "all", cells).text
    where = "(gpt3-175b on h200)"
    assert f"Steady , with the margin of their drift dp1 {where}: {margins} tp2 " in text
    drifts = "step time +3.1 %, power −1.2 %, temperature +4.2 °C"
    assert f"Not steady , with their drift tp4 {where}: {drifts} Not told" in text
    assert f"Not told 2 blocks are too few: tp8 {where}; tp16 {where} " in text
    # In the table: a null is not steady.
    for label, state in (("dp1", "yes"), ("tp4", "no"), ("tp8", "not told")):
        assert f"{label} gpt3-175b · h200 {state} " in text

    always = build(tmp_path / "always", [Planned(measures=steady)]).text
    assert "Steady , with" in always
    assert "Not steady" not in always
    assert "Not told" not in always


def test_runs_of_a_cell_that_differ_in_steadiness_are_counted(tmp_path: Path) -> None:
    cell = Planned(
        "tp1",
        outcomes=(Outcome.COMPLETED,) * 4,
        measures={"steady": True},
        of_run={3: _WARMING, 4: _SHORT},
    )
    text = build(tmp_path, [cell]).text
    assert "dp1 (gpt3-175b on h200, 2 of 4 runs): step time" in text
    assert "dp1 (gpt3-175b on h200, 1 of 4 runs): step time +3.1 %" in text
    assert "2 blocks are too few: dp1 (gpt3-175b on h200, 1 of 4 runs)" in text
    assert "yes (2 runs), no (1 run), not told (1 run)" in text


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
    assert "Trained to the end, but with invalid telemetry" in page.text
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
    assert "If the interval contains 0, no slow-down was found" in page.text
    # Rate, slow-down, interval, pairs, steps, step time, CPU, memory, achieved rate, late share.
    label = "tp8 SIMULATED GPU readings 1"
    assert f"{label} off reference – 110 1.07 0.010 21.3 – –" in page.text
    assert f"{label} 1 25 2 pairs are too few 2 110 1.07 – 21.3 1.000 0.010" in page.text
    assert f"{label} 50 0.031 −0.010 to 0.082 12 110 1.07 0.43 21.3 49.98 0.010" in page.text
    assert page.text.index(f"{label} 1 25") < page.text.index(f"{label} 50")

    assert "What sampling costs" not in build(tmp_path / "other", [Planned()]).text


def test_what_completed_runs_could_not_measure_is_told_once_a_reason(tmp_path: Path) -> None:
    def lacking(*columns: str) -> dict[str, Any]:
        reasons = dict.fromkeys(columns, "no peak is known")
        return {**dict.fromkeys(columns), "missing_reasons": json.dumps(reasons)}

    one = lacking("mfu_6n", "mfu_causal", "prefill_time_s")
    text = build(tmp_path, [Planned(measures=one), Planned("tp4", measures=lacking("mfu_6n"))]).text
    # Training has no prefill, for which no reason is worth a word.
    assert "no peak is known mfu_6n, mfu_causal (1 run) 2" in text


def test_a_cell_at_the_cap_that_draws_less_than_the_limit_is_explained(tmp_path: Path) -> None:
    # As four pipeline stages on H200 did: 579 of 700 W.
    odd = {
        "throttle_power_share": 0.985,
        "power_of_limit_share": 0.827,
        "at_power_limit_share": 0.31,
        "at_power_limit_burst_s": 0.124,
        "capped_clock_share": 0.78,
    }
    text = build(tmp_path / "odd", [Planned(measures=odd)]).text
    assert (
        "at the cap for 98.5 % of time; draws 82.7 % of the limit; power is within 5 % of the "
        "limit for 31.0 % of time, 124 ms at a time; the SM clock is at 78.0 % of the highest "
        "while capped"
    ) in text

    reason = "node1 GPU 0: power readings are means over too long to show bursts"
    names = ("at_power_limit_share", "at_power_limit_burst_s")
    unknown = odd | dict.fromkeys(names) | {"missing_reasons": json.dumps({names[0]: reason})}
    text = build(tmp_path / "unknown", [Planned(measures=unknown)]).text
    assert f"whether it is capped in bursts is not known: {reason};" in text

    for number, other in enumerate(({"power_of_limit_share": 0.99}, {"throttle_power_share": 0.5})):
        text = build(tmp_path / str(number), [Planned(measures=odd | other)]).text
        assert "At the power cap nearly always" not in text


def test_gpus_without_a_rank_and_other_jobs_are_named(tmp_path: Path) -> None:
    idle = [
        {
            "node": "node1",
            "gpu": gpu,
            "watched": watched,
            "power_mean_w": power,
            "missing_reasons": "{}",
        }
        for gpu, power, watched in ((4, 71.4, True), (5, None, True), (6, 69.0, False))
    ]
    cells = [
        Planned(unused_gpus=idle, measures={"other_jobs_peak": 2.0}),
        Planned("tp4", measures={"other_jobs_peak": 0.0}),
    ]
    text = build(tmp_path, cells).text
    assert (
        "tp2-pp16, run 1, node1: GPU 6 (69.0 W; not part of the job, read once before "
        "training), " in text
    )
    assert "GPU 4 (71.4 W), GPU 5 (power unknown)" in text
    assert text.count("up to 2 other jobs on a node") == 1
    assert text.count("on a node") == 1 + text.count("Other jobs on a node")
    assert "energies of whole nodes and of CPUs include these jobs" in text


def test_runs_that_started_warmer_than_asked_are_named(tmp_path: Path) -> None:
    asked = {"cool_down_to_c": 37.0, "cool_down_limit_s": 90.0}

    def cooled(waited_s: float, after_c: float, **of_cell: Any) -> Planned:
        waited = CoolDown(1e9, waited_s, after_c <= 37, 60.0, after_c)
        return Planned(telemetry=asked, cool_down=waited, **of_cell)

    cells = [
        cooled(90.04, 41.0),
        # Cells of two models may have one label.
        cooled(90.04, 38.0, model="gpt3-22b"),
        cooled(77.1, 37.0, parallelism="tp4"),
        # Cool at the last look.
        cooled(90.04, 36.0, parallelism="tp2"),
        Planned("tp8"),
    ]
    text = build(tmp_path, cells).text
    assert "Started with warmer GPUs than asked" in text
    line = "({} on h200), run 1: at {} °C after 90 s, where at most 37 °C was asked"
    assert f"tp2-pp16 {line.format('gpt3-175b', 41)}" in text
    assert f"tp2-pp16 {line.format('gpt3-22b', 38)}" in text
    assert text.count("37 °C was asked") == 2
    cool = build(tmp_path / "cool", cells[2:]).text
    assert "warmer GPUs" not in cool
