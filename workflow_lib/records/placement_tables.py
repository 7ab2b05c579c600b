"""Every column of the table of GPUs and slots.

``docs/reference/columns.md`` is made from this module.
"""

from __future__ import annotations

from workflow_lib.records.columns import Column, columns


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
    *columns(("missing_reasons", str, "", "JSON: column → why it is null")),
)
