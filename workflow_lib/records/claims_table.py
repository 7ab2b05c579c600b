"""Every column of the table of verdicts on claims.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from workflow_lib.records.columns import LATER, Column, columns

#: claims.parquet: one row for each contrast by which a claim is judged. A test without cells, and a
#: claim without a test, has one row that says so
CLAIMS = columns(
    ("claim", str, "", "the claim's id in config/claims.yaml"),
    ("by", str, "", "who makes the claim: study, triptych or reviewers"),
    ("says", str, "", "the claim, in words"),
    ("test", int, "", "which of the claim's tests, from 1; null where it has none"),
    ("part", str, "", "the part of the claim that is tested; null for the whole claim"),
    (
        "basis",
        str,
        "",
        "measured: of runs; projected: of planned cells, none of which has run",
    ),
    ("measure", str, "", "the measure that is contrasted"),
    (
        "contrast",
        str,
        "",
        "ratio (first over second) or difference (first − second); value (the measure itself); "
        "ratio_of_ratios (that of the first pair over that of the second) or "
        "difference_of_differences (likewise)",
    ),
    ("above", float, "", "the claim says that the contrast is above this; null without a bound"),
    ("below", float, "", "the claim says that the contrast is below this; null without a bound"),
    ("holds_in", str, "", "whether the claim must hold in all of the contrasts, most or any"),
    ("verdict", str, "", "supported, contradicted, undecided or not_testable: by this contrast"),
    (
        "deciding_verdict",
        str,
        "",
        "the same, at the coverage at which one contrast of the claim may decide alone",
    ),
    ("deciding_coverage", float, "", "that coverage; null without an interval"),
    ("test_verdict", str, "", "the same, by all contrasts of the test"),
    ("claim_verdict", str, "", "the same, by all tests of the claim"),
    ("in_words", str, "", "the contrast, its interval and why"),
    ("model", str, "", "name of config/models/<model>.yaml"),
    ("cell_a", str, "", "the first cell, or the only one"),
    ("cell_b", str, "", "the second cell; null if there is only one"),
    ("label_a", str, "", "short name of the first cell"),
    ("label_b", str, "", "short name of the second cell"),
    ("platform_a", str, "", "platform of the first cell"),
    ("platform_b", str, "", "platform of the second cell"),
    ("sweeps_a", str, "", "the sweeps that show the first cell, separated by commas"),
    ("sweeps_b", str, "", "the sweeps that show the second cell"),
    (
        "runs_a",
        str,
        "",
        "the completed runs of the first cell, by number; of a measure of profiled runs, their "
        "number and the seeds of their cells",
    ),
    ("runs_b", str, "", "the completed runs of the second cell"),
    (
        "gpu_sets",
        int,
        "",
        "over how many sets of GPUs the interval is, of all cells that fit; null where it is over "
        "runs. cell_a is then the first of these cells",
    ),
    ("simulated", bool, "", "whether GPU readings were simulated"),
    ("emulated_a", str, "", "what is emulated on the first cell's platform; null if nothing is"),
    ("emulated_b", str, "", "the same of the second cell's platform"),
    ("beside_model", str, "", "model of the second pair; null where a contrast has one pair"),
    ("beside_cell_a", str, "", "the first cell of the second pair; null where there is one pair"),
    ("beside_cell_b", str, "", "the second cell of the second pair; likewise"),
    ("beside_label_a", str, "", "short name of the second pair's first cell"),
    ("beside_label_b", str, "", "short name of the second pair's second cell"),
    ("beside_platform_a", str, "", "platform of the second pair's first cell"),
    ("beside_platform_b", str, "", "platform of the second pair's second cell"),
    ("beside_sweeps_a", str, "", "the sweeps that show the second pair's first cell"),
    ("beside_sweeps_b", str, "", "the sweeps that show the second pair's second cell"),
    ("beside_runs_a", str, "", "the completed runs of the second pair's first cell, by number"),
    ("beside_runs_b", str, "", "the completed runs of the second pair's second cell"),
    ("beside_emulated_a", str, "", "as emulated_a, of the second pair's first cell"),
    ("beside_emulated_b", str, "", "as emulated_a, of the second pair's second cell"),
    ("estimate", float, "", "as in comparison.parquet; of two pairs, as contrast says"),
    ("low", float, "", "lower end of the interval that the runs support"),
    ("high", float, "", "upper end of the same"),
    ("coverage", float, "", "of the interval; null if the ends are only a range"),
    (
        "wide_low",
        float,
        "",
        "lower end with the possible effects of dates, nodes and sensors; the verdict uses it",
    ),
    ("wide_high", float, "", "upper end of the same"),
    ("assumes", str, "", "what the interval assumes"),
    ("missing_reasons", str, "", "JSON: column → why it is null"),
    ("missing_codes", str, "", "JSON: column → the code of that reason", LATER),
)


def _effect(name: str, about: str, unit: str = "", suffix: str = "") -> tuple[Column, ...]:
    return columns(
        (f"{name}_effect{suffix}", float, unit, about),
        (f"{name}_effect_low{suffix}", float, unit, "lower end of its 90 % interval"),
        (f"{name}_effect_high{suffix}", float, unit, "upper end of the same"),
    )


#: slots.parquet: one row a GPU, over the completed runs of a sweep that moves stages between GPUs
SLOTS = (
    *columns(
        ("node", str, "", "the node's name"),
        ("gpu", int, "", "index of the GPU in its node"),
        ("gpu_uuid", str, "", "the GPU's UUID, from its driver"),
        ("runs", int, "", "completed runs with readings of it"),
        (
            "at_power_cap",
            bool,
            "",
            "whether clocks are means of the time at the power cap; else of the whole time",
        ),
        ("sm_clock_mean_mhz", float, "MHz", "mean over its runs of the mean SM clock"),
        ("power_mean_w", float, "W", "mean over its runs"),
        ("temperature_mean_c", float, "°C", "mean over its runs of the core's mean"),
        ("above_inlet_c", float, "°C", "the same above the air at the node's inlet"),
        (
            "behind",
            bool,
            "",
            "whether the whole interval of its clock's effect is below the negative threshold",
        ),
    ),
    *_effect(
        "clock",
        "logarithm of its clock minus the mean over all GPUs, without the effect of the stage",
    ),
    *_effect("power", "the same for its power"),
    *_effect("temperature", "the same for its temperature, without the logarithm", "°C", "_c"),
    *_effect("slot", "part of clock_effect that GPUs of this index share on all nodes"),
    *_effect("silicon", "the rest of clock_effect"),
    *columns(
        ("missing_reasons", str, "", "JSON: column → why it is null"),
        ("missing_codes", str, "", "JSON: column → the code of that reason", LATER),
    ),
)
