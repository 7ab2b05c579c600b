"""The study's configuration as the throwaway cluster needs it: tiny models, few ranks, and GPUs
whose readings are simulated.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.made_sweeps import made_sweep

ROOT = Path(__file__).parent.parent.parent

_SWEEP = made_sweep(
    "Tiny models on the throwaway cluster",
    {"idle_baseline_s": 0.5},
    platforms=["h200", "h100", "mi250"],
    matrix=[
        {"platforms": ["h200", "mi250"], "models": "llama3-tiny", "dp": 2},
        {"platforms": "h200", "models": "gpt3-tiny", "pp": 2, "dp": 1},
        {"platforms": "h100", "models": "mixtral-tiny", "dp": 2},
    ],
)


def write(directory: Path, **changes: Any) -> Path:
    """Write the configuration into ``directory``. ``changes`` go into each platform."""
    shutil.copytree(ROOT / "config", directory)
    shutil.rmtree(directory / "sweeps")
    (directory / "sweeps").mkdir()
    _dump(directory / "sweeps" / "tiny.yaml", _SWEEP)
    for name in ("h200", "h100", "mi250"):
        path = directory / "platforms" / f"{name}.yaml"
        platform = yaml.safe_load(path.read_text(encoding="utf-8"))
        # Two nodes of one GPU; the cluster has one MI250 node, which gives both dies of a package.
        shape = {"nodes": 2, "gpus_per_node": 1, "airflow": ["front"]}
        if name == "mi250":
            shape = {"nodes": 1, "gpus_per_node": 2, "airflow": ["front", "rear"]}
        platform |= shape | {
            "account": "research",
            "constraint": name,
            "cpus_per_gpu": 1,
            # Not the whole node, so that what is allocated can be compared with what was asked.
            "exclusive": False,
            "memory_per_node_gb": 4,
            "telemetry": "simulated",
            "python": sys.executable,
        }
        _dump(path, platform | changes)
    return directory


def profile(directory: Path) -> None:
    """Have every cell profiled, too."""
    path = directory / "sweeps" / "tiny.yaml"
    _dump(path, _SWEEP | {"protocol": _SWEEP["protocol"] | {"profiled_steps": 1}})


def _dump(path: Path, content: Any) -> None:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
