"""Every column of the table that compares two sweeps.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from workflow_lib.records.columns import LATER, columns

#: comparison.parquet: one row a pair of cells and measure. A pair that did not complete on both
#: sides has one row without a measure, and so has a cell without a partner
COMPARISON = columns(
    (
        "match",
        str,
        "",
        "how the cells correspond: same_layout (they differ only in where they ran), "
        "other_replicas (also in dp), other_stages (also in pp), best (the best of each side by "
        "the measure), named (as asked for) or unmatched",
    ),
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
    (
        "power_limits",
        str,
        "",
        "the enforced power limits of both sides' GPUs if they differ; else null",
    ),
    (
        "memory",
        str,
        "",
        "torch's allocators of both sides with their settings if they differ, and in how many runs "
        "of a side memory was under pressure; null if neither",
    ),
    (
        "measure",
        str,
        "",
        "a column of runs.parquet",
    ),
    ("unit", str, "", "of value_a and value_b"),
    (
        "contrast",
        str,
        "",
        "what is estimated: ratio (A over B) or difference (A − B)",
    ),
    ("value_a", float, "", "median over A's completed runs"),
    ("value_b", float, "", "median over B's completed runs"),
    (
        "estimate",
        float,
        "",
        "contrast of the means over runs; for a ratio, of the means of logarithms",
    ),
    ("low", float, "", "lower end of the interval that the runs support"),
    ("high", float, "", "upper end of the same"),
    (
        "coverage",
        float,
        "",
        "how probably that interval holds the true contrast; null with fewer than three runs a "
        "side: the ends are then the least and the greatest contrast of two runs",
    ),
    (
        "design",
        str,
        "",
        "in_blocks (a random order of submission in blocks, each with a run of both), within_hosts "
        "(two or more sessions of one set of GPUs, each with runs of both) or apart",
    ),
    (
        "drift_per_run",
        float,
        "",
        "change from one run to the next of either side, within sessions if the design is "
        "within_hosts: a share, or in the unit",
    ),
    ("drift_per_run_low", float, "", "lower end of its 95 % interval"),
    ("drift_per_run_high", float, "", "upper end of the same"),
    (
        "date_effect",
        float,
        "",
        "how far dates on which both sides ran differ: a share, or in the unit",
    ),
    (
        "date_allowance",
        float,
        "",
        "by how much two hosts of one kind differ at most, in as many cases as coverage says, for "
        "runs that are apart: a share, or in the unit; 0 in blocks, and within hosts unless one "
        "side ran first in every session",
    ),
    (
        "sensors_low",
        float,
        "",
        "the least that the errors of sensors may make of the contrast: a factor of a ratio of "
        "energies or powers; °C of a temperature",
    ),
    ("sensors_high", float, "", "the greatest"),
    ("energy_error_a", float, "", "the largest energy_error_share of A's runs"),
    ("energy_error_b", float, "", "the largest energy_error_share of B's runs"),
    (
        "wide_low",
        float,
        "",
        "lower end with these errors and the allowance; the verdict uses it",
    ),
    ("wide_high", float, "", "upper end of the same"),
    (
        "verdict",
        str,
        "",
        "a_more, b_more, not_told_apart; no_verdict (a side has fewer than three runs, or the "
        "effect of dates or the power of a run is unknown); same_runs (a run is on both sides); "
        "refused; missing; "
        "only_a_completed, only_b_completed, neither_completed; no_partner_in_a, no_partner_in_b",
    ),
    ("assumes", str, "", "what the verdict assumes"),
    (
        "medians",
        str,
        "",
        "by what value_a and value_b differ, and why, if the verdict's interval excludes that",
    ),
    ("in_words", str, "", "the same as a sentence, with the interval"),
    ("missing_reasons", str, "", "JSON: column → why it is null"),
    ("missing_codes", str, "", "JSON: column → the code of that reason", LATER),
)
