"""Calculon as shipped, for comparison: an optional checkout that runs in its own interpreter.

It supports dense models with two feed-forward matrices and as many heads of keys as of queries, and
no context parallelism. Other rows are not given to it. Its files of machines are used unchanged,
except for the memory's size, because that would refuse layouts that did run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workflow_lib.projection.layouts import Layout
from workflow_lib.records import RecordError

#: GPU → Calculon's file of its machine
_SYSTEMS = {"H100": "h100_80g_nvl8", "A100 80GB": "a100_80g"}
_TYPES = {"BF16": "float16", "FP16": "float16", "FP8": "float8"}
_ENOUGH_GIB = 100_000
_DRIVER = Path(__file__).with_name("calculon_driver.py")


def times(
    layouts: Mapping[int, Layout], checkout: Path, python: str = sys.executable
) -> dict[int, float]:
    """Seconds of a step by line, of the layouts that Calculon can express.

    Raises RecordError if the checkout does not run.
    """
    cases, lines = [], []
    for line, layout in layouts.items():
        if _expressible(layout):
            path = checkout / "systems" / f"{_SYSTEMS[layout.machine.gpu]}.json"
            try:
                system = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise RecordError(f"{path}: expected a system of Calculon: {error}") from None
            cases.append(_case(layout, system))
            lines.append(line)
    done = subprocess.run(
        # The driver is passed as text: run from its directory, "calculon" would import this module.
        [python, "-c", _DRIVER.read_text(encoding="utf-8")],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        cwd=checkout,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RecordError(f"{checkout}: Calculon does not run with {python}: {last}")
    found = json.loads(done.stdout)
    return {line: time for line, time in zip(lines, found, strict=True) if isinstance(time, float)}


def _expressible(layout: Layout) -> bool:
    shape = layout.shape
    return (
        layout.machine.gpu in _SYSTEMS
        and not shape.gated
        and not shape.experts
        and shape.heads == shape.kv_heads
        and layout.cp == 1
        and layout.sharding < 2
        and layout.layers % (layout.pp * layout.virtual_stages) == 0
        and layout.micro_batches == int(layout.micro_batches)
    )


def _case(layout: Layout, system: dict[str, Any]) -> dict[str, Any]:
    shape = layout.shape
    system["mem1"]["GiB"] = _ENOUGH_GIB
    full, parallel = layout.recomputation == "full", layout.tp > 1
    return {
        "application": {
            "hidden": shape.hidden,
            "feedforward": shape.ffn,
            "seq_size": layout.sequence_length,
            "attn_heads": shape.heads,
            "attn_size": shape.head_size,
            "num_blocks": layout.layers,
        },
        "system": system,
        "execution": {
            "num_procs": layout.gpus,
            "tensor_par": layout.tp,
            "pipeline_par": layout.pp,
            "data_par": layout.dp,
            "tensor_par_net": 0,
            "pipeline_par_net": 1,
            "data_par_net": 1,
            "batch_size": int(layout.dp * layout.micro_batches * layout.micro_batch),
            "microbatch_size": layout.micro_batch,
            "datatype": _TYPES[layout.precision],
            "fused_activation": True,
            "attention_type": "multihead",
            "activation_recompute": {"selective": "attn_only"}.get(
                layout.recomputation, layout.recomputation
            ),
            "pipeline_interleaving": layout.virtual_stages,
            "optimizer_sharding": layout.dp > 1,
            "tensor_par_comm_type": "rs_ag" if parallel and not full else "ar",
            "tensor_par_overlap": "none",
            "seq_par_ag_redo": parallel and not full,
            "data_par_overlap": False,
            "weight_offload": False,
            "activations_offload": False,
            "optimizer_offload": False,
            "training": True,
        },
    }
