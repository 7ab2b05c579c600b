"""Every column of the tables of two sweeps compared, of verdicts on claims, and of slow GPUs.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from workflow_lib.records.columns import LATER, Column, columns

# fmt: off
#: comparison.parquet: one row a pair of cells and measure. A pair that did not complete on both
#: sides has one row without a measure, and so has a cell without a partner
COMPARISON = columns(
    ("match", str, "",
        "how the cells correspond: same_layout (they differ only in where they ran), "
        "other_replicas (also in dp), other_stages (also in pp), best (the best of each side by "
        "the measure), named (as asked for) or unmatched"),
    ("model", str, "", "name of config/models/<model>.yaml"),
    ("workload", str, "", "pretrain, lora or inference"),
    ("cell_a", str, "", "A's cell; null where A has no partner"),
    ("cell_b", str, "", "B's cell; null where B has no partner"),
    ("differs", str, "", "the identity columns in which the cells differ, separated by commas"),
    ("platform_a", str, "", "A's platform"),
    ("platform_b", str, "", "B's platform"),
    ("gpus_a", int, "", "GPUs (ranks) of A's cell"),
    ("gpus_b", int, "", "GPUs (ranks) of B's cell"),
    ("outcome_a", str, "", "as in cells.parquet"),
    ("outcome_b", str, "", "as in cells.parquet"),
    ("runs_a", int, "", "completed runs of A's cell"),
    ("runs_b", int, "", "completed runs of B's cell"),
    ("simulated", bool, "", "whether GPU readings of either side were simulated"),
    ("emulated_a", str, "", "what is emulated on A's platform, in words; null if nothing is"),
    ("emulated_b", str, "", "the same on B's platform"),
    ("power_limits", str, "",
        "the enforced power limits of both sides' GPUs if they differ; else null"),
    ("memory", str, "",
        "torch's allocators of both sides with their settings if they differ, and in how many runs "
        "of a side memory was under pressure; null if neither"),
    ("measure", str, "", "a column of runs.parquet"),
    ("unit", str, "", "of value_a and value_b"),
    ("contrast", str, "", "what is estimated: ratio (A over B) or difference (A − B)"),
    ("value_a", float, "", "median over A's completed runs"),
    ("value_b", float, "", "median over B's completed runs"),
    ("estimate", float, "",
        "contrast of the means over runs; for a ratio, of the means of logarithms"),
    ("low", float, "", "lower end of the interval that the runs support"),
    ("high", float, "", "upper end of the same"),
    ("coverage", float, "",
        "how probably that interval holds the true contrast; null with fewer than three runs a "
        "side: the ends are then the least and the greatest contrast of two runs"),
    ("design", str, "",
        "in_blocks (a random order of submission in blocks, each with a run of both), within_hosts "
        "(two or more sessions of one set of GPUs, each with runs of both) or apart"),
    ("drift_per_run", float, "",
        "change from one run to the next of either side, within sessions if the design is "
        "within_hosts: a share, or in the unit"),
    ("drift_per_run_low", float, "", "lower end of its 95 % interval"),
    ("drift_per_run_high", float, "", "upper end of the same"),
    ("date_effect", float, "",
        "how far dates on which both sides ran differ: a share, or in the unit"),
    ("date_allowance", float, "",
        "by how much two hosts of one kind differ at most, in as many cases as coverage says, for "
        "runs that are apart: a share, or in the unit; 0 in blocks, and within hosts unless one "
        "side ran first in every session"),
    ("sensors_low", float, "",
        "the least that the errors of sensors may make of the contrast: a factor of a ratio of "
        "energies or powers; °C of a temperature"),
    ("sensors_high", float, "", "the greatest"),
    ("energy_error_a", float, "", "the largest energy_error_share of A's runs"),
    ("energy_error_b", float, "", "the largest energy_error_share of B's runs"),
    ("wide_low", float, "", "lower end with these errors and the allowance; the verdict uses it"),
    ("wide_high", float, "", "upper end of the same"),
    ("verdict", str, "",
        "a_more, b_more, not_told_apart; no_verdict (a side has fewer than three runs, or the "
        "effect of dates or the power of a run is unknown); same_runs (a run is on both sides); "
        "refused; missing; only_a_completed, only_b_completed, neither_completed; no_partner_in_a, "
        "no_partner_in_b"),
    ("assumes", str, "", "what the verdict assumes"),
    ("medians", str, "",
        "by what value_a and value_b differ, and why, if the verdict's interval excludes that"),
    ("in_words", str, "", "the same as a sentence, with the interval"),
    ("missing_reasons", str, "", "JSON: column → why it is null"),
    ("missing_codes", str, "", "JSON: column → the code of that reason", LATER),
)

#: claims.parquet: one row for each contrast by which a claim is judged. A test without cells, and a
#: claim without a test, has one row that says so
CLAIMS = columns(
    ("claim", str, "", "the claim's id in config/claims.yaml"),
    ("by", str, "", "who makes the claim: study, triptych or reviewers"),
    ("says", str, "", "the claim, in words"),
    ("test", int, "", "which of the claim's tests, from 1; null where it has none"),
    ("part", str, "", "the part of the claim that is tested; null for the whole claim"),
    ("basis", str, "", "measured: of runs; projected: of planned cells, none of which has run"),
    ("measure", str, "", "the measure that is contrasted"),
    ("contrast", str, "",
        "ratio (first over second) or difference (first − second); value (the measure itself); "
        "ratio_of_ratios (that of the first pair over that of the second) or "
        "difference_of_differences (likewise)"),
    ("above", float, "", "the claim says that the contrast is above this; null without a bound"),
    ("below", float, "", "the claim says that the contrast is below this; null without a bound"),
    ("holds_in", str, "", "whether the claim must hold in all of the contrasts, most or any"),
    ("verdict", str, "", "supported, contradicted, undecided or not_testable: by this contrast"),
    ("deciding_verdict", str, "",
        "the same, at the coverage at which one contrast of the claim may decide alone"),
    ("deciding_coverage", float, "", "that coverage; null without an interval"),
    ("test_verdict", str, "", "the same, by all contrasts of the test"),
    ("claim_verdict", str, "", "the same, by all tests of the claim"),
    ("in_words", str, "", "the contrast, its interval and why"),
    ("model", str, "", "name of config/models/<model>.yaml"),
    ("cell_a", str, "", "the first cell, or the only one"),
    ("cell_b", str, "", "the second cell; null if there is only one"),
    ("label_a", str, "", "short name of the first cell"),
    ("label_b", str, "", "short name of the second cell"),
    ("shared", str, "",
        "what short names leave out: the options that cells of the pair share, and in what other "
        "contrasts of the test with these names differ"),
    ("platform_a", str, "", "platform of the first cell"),
    ("platform_b", str, "", "platform of the second cell"),
    ("sweeps_a", str, "", "the sweeps that show the first cell, separated by commas"),
    ("sweeps_b", str, "", "the sweeps that show the second cell"),
    ("runs_a", str, "",
        "the completed runs of the first cell, by number; of a measure of profiled runs, their "
        "number and the seeds of their cells"),
    ("runs_b", str, "", "the completed runs of the second cell"),
    ("gpu_sets", int, "",
        "over how many sets of GPUs the interval is, of all cells that fit; null where it is over "
        "runs. cell_a is then the first of these cells"),
    ("simulated", bool, "", "whether GPU readings were simulated"),
    ("emulated_a", str, "", "what is emulated on the first cell's platform; null if nothing is"),
    ("emulated_b", str, "", "the same of the second cell's platform"),
    ("beside_model", str, "", "model of the second pair; null where a contrast has one pair"),
    ("beside_cell_a", str, "", "the first cell of the second pair; null where there is one pair"),
    ("beside_cell_b", str, "", "the second cell of the second pair; likewise"),
    ("beside_label_a", str, "", "short name of the second pair's first cell"),
    ("beside_label_b", str, "", "short name of the second pair's second cell"),
    ("beside_shared", str, "", "as shared, of the second pair"),
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
    ("wide_low", float, "",
        "lower end with the possible effects of dates, nodes and sensors; the verdict uses it"),
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
        ("at_power_cap", bool, "",
            "whether clocks are means of the time at the power cap; else of the whole time"),
        ("sm_clock_mean_mhz", float, "MHz", "mean over its runs of the mean SM clock"),
        ("power_mean_w", float, "W", "mean over its runs"),
        ("temperature_mean_c", float, "°C", "mean over its runs of the core's mean"),
        ("above_inlet_c", float, "°C", "the same above the air at the node's inlet"),
        ("behind", bool, "",
            "whether the whole interval of its clock's effect, as a share of the mean, is below "
            "the negative threshold"),
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
