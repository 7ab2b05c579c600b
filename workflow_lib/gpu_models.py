"""Known properties of GPU models, by the names that drivers report.

Names are compared whole: "NVIDIA GH200 480GB" is not an H200, and "NVIDIA H100 PCIe" has three
quarters of the peak of "NVIDIA H100 80GB HBM3", which is the "H100" of platform files. An unknown
property is null. Nothing is known of a model that is not in this table.

Sources:

- peaks: datasheets of NVIDIA for H100, H200, GH200 and A100, and of AMD for MI250. They are dense
  peaks, half of those "with sparsity"; fp32 is without tensor cores. MI250's are those of a die,
  which is a GPU here. fp8 is null if the model has no fp8 units, as A100 and MI250.
- windows of H100, H200 and GH200: 1.0 s, measured on H200 with driver 580.159
  (``research/sensors_on_gpus.py``), and documented by NVML (nvmlDeviceGetPowerUsage) for GPUs
  after GA100. Windows of A100: 25 ms of every 100 ms (arXiv 2312.02741).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class GpuModel:
    """A model of GPU."""

    #: its name in platform files
    key: str
    #: its names in drivers; if empty, these are not known for sure, and every name that holds the
    #: key as a word fits
    names: tuple[str, ...]
    peak_bf16_flops_per_s: float
    peak_fp32_flops_per_s: float
    #: time over which a reading of power is a mean
    reading_window_s: float | None = None
    #: time between two looks of the power sensor, each of which is one of the driver's own samples
    look_period_s: float | None = None
    #: share of the time between two new readings that the sensor measures
    seen_share: float | None = None
    peak_fp8_flops_per_s: float | None = None


_HOPPER_READING_S = 1.0
#: the datasheet has 3 958 TFLOP/s with sparsity
_HOPPER_SXM_FP8 = 1979.0e12
#: Measured on H200 and H100 (driver 580) with square waves of matrix products. If their period is
#: 20.0 ms, samples are 24 % too low to 27 % too high, by the phase; at 17.3 and 23.1 ms they are
#: right to 0.7 %. So the sensor looks for much less than 20 ms, every 20 ms.
_HOPPER_LOOK_S = 0.02

# fmt: off
MODELS: tuple[GpuModel, ...] = (
    GpuModel("H200", ("NVIDIA H200",), 989.4e12, 66.9e12, _HOPPER_READING_S, _HOPPER_LOOK_S,
        peak_fp8_flops_per_s=_HOPPER_SXM_FP8),
    GpuModel("H200 NVL", ("NVIDIA H200 NVL",), 835.5e12, 60.0e12, _HOPPER_READING_S,
        peak_fp8_flops_per_s=1670.5e12),
    GpuModel("H100", ("NVIDIA H100 80GB HBM3",), 989.4e12, 66.9e12,
        _HOPPER_READING_S, _HOPPER_LOOK_S, peak_fp8_flops_per_s=_HOPPER_SXM_FP8),
    GpuModel("H100 PCIe", ("NVIDIA H100 PCIe",), 756.0e12, 51.0e12, _HOPPER_READING_S,
        peak_fp8_flops_per_s=1513.0e12),
    GpuModel("H100 NVL", ("NVIDIA H100 NVL",), 835.5e12, 60.0e12, _HOPPER_READING_S,
        peak_fp8_flops_per_s=1670.5e12),
    GpuModel("GH200", ("NVIDIA GH200 120GB", "NVIDIA GH200 480GB", "NVIDIA GH200 144G HBM3e"),
        989.4e12, 66.9e12, _HOPPER_READING_S, peak_fp8_flops_per_s=_HOPPER_SXM_FP8),
    GpuModel("A100 SXM", ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), 312.0e12, 19.5e12,
        reading_window_s=0.025, seen_share=0.25),
    GpuModel("A100 PCIe", ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe"), 312.0e12, 19.5e12,
        reading_window_s=0.025, seen_share=0.25),
    GpuModel("MI250", (), 181.05e12, 22.65e12),
)
# fmt: on
_BY_KEY = {model.key: model for model in MODELS}


def named(key: str | None) -> GpuModel | None:
    """The model of a platform file's ``gpu``; None if it is not in the table."""
    return None if key is None else _BY_KEY.get(key)


def other_case(name: str) -> str | None:
    """The key from which a name differs only in upper and lower case; None if there is none."""
    keys = {key.casefold(): key for key in _BY_KEY}
    key = keys.get(name.casefold())
    return None if key == name else key


def of_device(name: str) -> GpuModel | None:
    """The model of a name that a driver reports; None if it is not in the table."""
    model = next((model for model in MODELS if name in model.names), None)
    if model is not None:
        return model
    return next((model for model in MODELS if not model.names and _holds(name, model.key)), None)


#: The driver's samples of an H200 reached 1.33 of its limit (929 of 700 W). No GPU is known to draw
#: twice its limit for as long as a look of its sensor.
_MOMENTARY_SHARE = 2.0
#: the bound for a GPU whose driver tells no limit
_ANY_GPU_W = 10_000.0
_LIMITS = ("power_limit_max_w", "power_limit_default_w", "power_limit_w")


def highest_limit_w(gpu: Mapping[str, Any]) -> float | None:
    """The highest power limit in W that a GPU's entry in the sampler's record tells; None if it
    tells none."""
    limits_w = [float(gpu[name]) for name in _LIMITS if gpu.get(name)]
    return max(limits_w, default=None)


def most_power_w(gpu: Mapping[str, Any]) -> float:
    """The power in W above which a value is a fault of the driver, not what this GPU draws, even
    for a moment. ``gpu`` is its entry in the sampler's record."""
    limit_w = highest_limit_w(gpu)
    return _ANY_GPU_W if limit_w is None else _MOMENTARY_SHARE * limit_w


def peak_flops_per_s(model: GpuModel | None, precision: str) -> float | None:
    """The dense peak of a model in a precision, in FLOP/s; None if it is not known."""
    if model is None:
        return None
    peaks = {
        "bf16": model.peak_bf16_flops_per_s,
        "fp32": model.peak_fp32_flops_per_s,
        "fp8": model.peak_fp8_flops_per_s,
    }
    return peaks.get(precision)


def mismatch(wanted: str | None, name: str) -> str:
    """Why a GPU of this name is not the one that a platform's file asks for; "" if it is, or if any
    will do.

    ``wanted`` is the key of a model in the table, or the driver's whole name. Any other text must
    be in the driver's name, word for word.
    """
    if wanted is None or wanted == name:
        return ""
    meant, actual = named(wanted), of_device(name)
    if meant is not None and meant.names:
        if actual is meant:
            return ""
        called = " or ".join(map(repr, meant.names))
        instead = f"; gpu: {actual.key} names this one" if actual else ""
        return f"{name!r} is not {wanted}, which its driver calls {called}{instead}"
    if actual is not None and actual is not meant:
        return f"{name!r} is {actual.key}, not {wanted}"
    return "" if _holds(name, wanted) else f"{name!r} does not have the words {wanted!r}"


def ambiguous(wanted: str | None) -> tuple[str, ...]:
    """The keys of all models that ``wanted`` may mean, if it is not a key itself."""
    if wanted is None or wanted in _BY_KEY:
        return ()
    keys = [
        m.key for m in MODELS if any(_holds(name, wanted) and name != wanted for name in m.names)
    ]
    return tuple(keys)


def _holds(name: str, wanted: str) -> bool:
    """Whether a name holds the words of ``wanted``, one after the other."""
    words, some = _words(name), _words(wanted)
    return bool(some) and any(
        words[place : place + len(some)] == some for place in range(len(words) - len(some) + 1)
    )


def _words(text: str) -> Sequence[str]:
    return re.findall(r"[a-z0-9]+", text.lower())
