"""What the page says of energies, of steadiness, of sampling, and of what could not be measured."""

from __future__ import annotations

import json
from typing import Any

import pytest

from workflow_lib.records.measures import MEASURES
from workflow_lib.records.nodes import CoolDown
from workflow_lib.records.outcomes import Outcome

from .pages import build
from .sweep import Planned

H200, MI250X = "±6.0 % (NVIDIA H200)", "±15 % (AMD Instinct MI250X)"


def heading(measure: str) -> str:
    """The heading of a measure's column."""
    known = MEASURES[measure]
    return f"{known.heading} {known.people[0] if known.people else known.unit}"


def test_energies_state_their_systematic_error_where_it_is_known(tmp_path):
    assert build(tmp_path / "known", [Planned()]).text.count(H200) == 4

    other = {"energy_systematic_share": 0.151, "gpu_name": "AMD Instinct MI250X"}
    both = build(tmp_path / "both", [Planned(), Planned("tp4", measures=other)]).text
    # In the figure's caption, too.
    assert both.count(f"{MI250X}, {H200}") == 4

    nothing = {"energy_j": None, "energy_systematic_share": None}
    none = build(tmp_path / "none", [Planned(measures=nothing)]).text
    assert "systematic error" not in none
    assert "trapezoid" not in none


def test_simulated_power_has_no_sensor_and_no_error(tmp_path):
    values = {"energy_systematic_share": None, "gpu_name": "simulated GPU"}
    simulated = Planned("tp4", simulated=True, measures=values)
    alone = build(tmp_path / "all", [simulated]).text
    beside = build(tmp_path / "some", [Planned(), simulated]).text
    for text in (alone, beside):
        assert text.count("has no sensor") == 1
    assert "±" not in alone.partition("has no sensor")[0]
    assert H200 in beside


def test_both_energies_and_their_difference_are_shown(tmp_path):
    energies = {"energy_j": 250_000.0, "energy_integral_j": 249_500.0, "energy_difference": -0.002}
    page = build(tmp_path, [Planned(measures=energies)])
    for measure in ("energy_j", "energy_integral_j", "power_peak_w", "idle_power_w"):
        assert heading(measure) in page.text
    # 250 and 249.5 kJ, less 0.2 %, both ± 6 %.
    assert "250 250 −0.20 6.00" in page.text


def test_what_no_cell_has_is_no_column_but_is_named_with_its_one_reason(tmp_path):
    whole = build(tmp_path / "with", [Planned(), Planned("tp4", measures={"mfu_6n": None})]).text
    # Nothing can be said of columns where nothing completed.
    failed = build(tmp_path / "failed", [Planned(outcomes=(Outcome.TIMEOUT,))]).text
    for text in (whole, failed):
        assert heading("mfu_6n") in text
        assert "left out" not in text

    lacking = {
        **dict.fromkeys(("mfu_6n", "mfu_causal", "node_energy_j", "step_time_s")),
        "missing_reasons": json.dumps(
            {"mfu_6n": "no peak", "mfu_causal": "no peak", "node_energy_j": "a"}
        ),
    }
    other = {**lacking, "missing_reasons": lacking["missing_reasons"].replace('"a"', '"b"')}
    cells = [Planned(measures=lacking), Planned("tp4", measures=other), Planned("x", reason="big")]
    text = build(tmp_path / "without", cells).text
    step_time, six_n, causal, nodes = (
        f"“{MEASURES[name].heading}”"
        for name in ("step_time_s", "mfu_6n", "mfu_causal", "node_energy_j")
    )
    assert f": {step_time}; {six_n}, {causal} (no peak). " in text
    assert f": {nodes}. " in text
    assert heading("mfu_6n") not in text
    assert heading("node_energy_j") not in text


TOO_FEW = "too few blocks"
_WARMING = {
    "steady": False,
    "step_time_drift": 0.031,
    "power_drift": -0.012,
    "temperature_drift_c": 4.25,
}
_SHORT = {
    "steady": None,
    "missing_reasons": json.dumps({"steady": TOO_FEW}),
    **dict.fromkeys(
        ("step_time_drift_margin", "power_drift_margin", "temperature_drift_margin_c"), None
    ),
}
_STEADY = {
    "steady": True,
    "step_time_drift_margin": 0.004,
    "power_drift_margin": 0.002,
    "temperature_drift_margin_c": 0.5,
}


def test_a_drift_that_no_line_describes_has_words_and_no_number(tmp_path):
    stalled = {**_WARMING, "step_time_drift": -1.93, "power_drift": 0.6}
    told = build(tmp_path, [Planned("tp1", measures=stalled)]).text.partition("Not steady ,")[2]
    assert told.index("fell by") < told.index("rose by") < told.index("+4.2 °C")
    assert "−60" not in told


def test_cells_are_told_by_what_became_of_their_steady_state(tmp_path):
    cells = [
        Planned("tp1", measures=_STEADY),
        Planned("tp2", measures=_STEADY),
        Planned("tp4", measures=_WARMING),
        Planned("tp8", measures=_SHORT),
        Planned("tp16", measures=_SHORT),
    ]
    text = build(tmp_path / "all", cells).text
    steady, _, rest = text.partition("Steady ,")[2].partition("Not steady ,")
    not_steady, _, not_told = rest.partition("Not told ")
    where = "(gpt3-175b on h200)"
    for label in ("dp1", "tp2"):
        assert f" {label} {where}: " in steady
    for margin in ("±0.40 %", "±0.20 %", "±0.50 °C"):
        assert steady.count(margin) == 2
    assert f" tp4 {where}: " in not_steady
    for drift in ("+3.1 %", "−1.2 %", "+4.2 °C"):
        assert drift in not_steady
    assert not_told.startswith(f"{TOO_FEW}: tp8 {where}; tp16 {where} ")
    # In the table: a null is not steady.
    for label, state in (("dp1", "yes"), ("tp4", "no"), ("tp8", "not told")):
        assert f"{label} gpt3-175b · h200 {state} " in text

    always = build(tmp_path / "always", [Planned(measures=_STEADY)]).text
    assert "Steady ," in always
    assert "Not steady" not in always
    assert "Not told" not in always


def test_runs_of_a_cell_that_differ_in_steadiness_are_counted(tmp_path):
    cell = Planned(
        "tp1",
        outcomes=(Outcome.COMPLETED,) * 4,
        measures={"steady": True},
        of_run={3: _WARMING, 4: _SHORT},
    )
    text = build(tmp_path, [cell]).text
    for part in ("2 of 4 runs):", "1 of 4 runs):", f"{TOO_FEW}: dp1"):
        assert part in text
    for state in ("yes (2 runs)", "no (1 run)", "not told (1 run)"):
        assert state in text


def test_training_that_was_not_watched_keeps_its_figures(tmp_path):
    unwatched = Planned(
        "tp4",
        outcomes=(Outcome.TELEMETRY_INVALID,),
        cause="GPU 3 was silent",
        measures={
            "energy_j": None,
            "step_time_s": 1.25,
            "tokens_per_s_per_gpu": 4321.0,
            "mfu_causal": 0.4321,
            "loss_last": 2.5,
        },
    )
    page = build(tmp_path, [Planned(), unwatched])
    assert unwatched.cause in page.text
    assert f"{unwatched.id} 1 1.25 4,321 43.2 2.50" in page.text


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


def test_what_sampling_costs_is_shown_where_it_was_measured(tmp_path):
    cell = Planned("tp8", simulated=True)
    slow = {"slowdown": 0.00031, "slowdown_low": -0.0001, "slowdown_high": 0.00082}
    too_few = {"pairs": 2, "missing_reasons": '{"slowdown_low": "too few"}'}
    rows = [
        _overhead(cell, 50.0, **slow, achieved_rate_hz=49.98),
        _overhead(cell, 0.0, sampler_cpu_share=0.0001, pairs=None, late_share=None),
        _overhead(cell, 1.0, sampler_cpu_share=None, slowdown=0.25, **too_few),
    ]
    page = build(tmp_path / "measured", [cell, Planned("tp4")], overhead=rows)
    # Rate, slow-down, interval, pairs, steps, step time, CPU, memory, achieved rate, late share.
    lines = (
        "off reference – 110 1.07 0.010 21.3 – –",
        "1 25 too few 2 110 1.07 – 21.3 1.000 0.010",
        "50 0.031 −0.010 to 0.082 12 110 1.07 0.43 21.3 49.98 0.010",
    )
    places = [page.text.index(line) for line in lines]
    assert places == sorted(places)
    assert "sampling costs" in page.text
    assert "sampling costs" not in build(tmp_path / "other", [Planned()]).text


def test_what_completed_runs_could_not_measure_is_told_once_a_reason(tmp_path):
    def lacking(*columns: str) -> dict[str, Any]:
        reasons = dict.fromkeys(columns, "no peak")
        return {**dict.fromkeys(columns), "missing_reasons": json.dumps(reasons)}

    one = lacking("mfu_6n", "mfu_causal", "prefill_time_s")
    text = build(tmp_path, [Planned(measures=one), Planned("tp4", measures=lacking("mfu_6n"))]).text
    # Training has no prefill, for which no reason is worth a word.
    assert "no peak mfu_6n, mfu_causal (1 run) 2" in text


#: as four pipeline stages on H200: 579 of 700 W
_ODD = {
    "throttle_power_share": 0.985,
    "power_of_limit_share": 0.827,
    "at_power_limit_share": 0.31,
    "at_power_limit_burst_s": 0.124,
    "capped_clock_share": 0.78,
}


@pytest.mark.parametrize(
    ("measures", "shown"),
    [
        (_ODD, ("98.5 %", "82.7 %", "31.0 %", "124 ms", "78.0 %")),
        (
            {
                **_ODD,
                **dict.fromkeys(("at_power_limit_share", "at_power_limit_burst_s")),
                "missing_reasons": '{"at_power_limit_share": "readings are means"}',
            },
            ("98.5 %", "82.7 %", ": readings are means;", "78.0 %"),
        ),
        (_ODD | {"power_of_limit_share": 0.99}, ()),
        (_ODD | {"throttle_power_share": 0.5}, ()),
    ],
)
def test_a_cell_at_the_cap_that_draws_less_than_the_limit_is_explained(tmp_path, measures, shown):
    text = build(tmp_path, [Planned(measures=measures)]).text
    told = text.partition("nearly always")[2]
    assert bool(told) == bool(shown)
    places = [told.index(each) for each in shown]
    assert places == sorted(places)


def test_gpus_without_a_rank_and_other_jobs_are_named(tmp_path):
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
    for told in ("GPU 6 (69.0 W; not part", "GPU 4 (71.4 W)", "GPU 5 (power unknown)"):
        assert text.count(told) == 1
    assert text.count("2 other jobs") == 1
    assert "0 other jobs" not in text


def test_runs_that_started_warmer_than_asked_are_named(tmp_path):
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
    told = build(tmp_path, cells).text.partition("warmer GPUs")[2]
    for model, temperature in (("gpt3-175b", 41), ("gpt3-22b", 38)):
        assert f"({model} on h200), run 1: at {temperature} °C" in told
    assert told.count("37 °C") == 2
    assert "warmer GPUs" not in build(tmp_path / "cool", cells[2:]).text
