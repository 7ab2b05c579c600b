"""Every column of the table of GPUs and slots.

``docs/reference/columns.md`` is made from this.
"""

from __future__ import annotations

from workflow_lib.records.columns import Column, columns


def _effect(name: str, about: str, unit: str = "", suffix: str = "") -> tuple[Column, ...]:
    return columns(
        (f"{name}_effect{suffix}", float, unit, about),
        (f"{name}_effect_low{suffix}", float, unit, "lower end of its 90 % interval"),
        (f"{name}_effect_high{suffix}", float, unit, "upper end of the same"),
    )


#: slots.parquet: one row a GPU, over the completed runs of a sweep in which GPUs changed stages
SLOTS = (
    *columns(
        ("node", str, "", "the node's name"),
        ("gpu", int, "", "index of the GPU in its node"),
        ("gpu_uuid", str, "", "which GPU that was, as its driver identifies it"),
        ("runs", int, "", "completed runs with readings of it"),
        (
            "at_power_cap",
            bool,
            "",
            "whether clocks are those at the power cap; else they are means over all time",
        ),
        ("sm_clock_mean_mhz", float, "MHz", "mean over its runs of the mean SM clock"),
        ("power_mean_w", float, "W", "mean over its runs"),
        ("temperature_mean_c", float, "°C", "mean over its runs of the core's mean"),
        ("above_inlet_c", float, "°C", "the same above the air at the node's inlet"),
        (
            "behind",
            bool,
            "",
            "whether its clock's effect is below the negative threshold with its whole interval",
        ),
    ),
    *_effect(
        "clock",
        "logarithm of its clock less the mean over all GPUs, without what goes with the stage",
    ),
    *_effect("power", "the same of its power"),
    *_effect("temperature", "its temperature less the mean, likewise", "°C", "_c"),
    *_effect("slot", "of the clock's effect, what all nodes' GPUs at this index have in common"),
    *_effect("silicon", "of the clock's effect, what is left"),
    *columns(("missing_reasons", str, "", "JSON: column → why it is null")),
)
