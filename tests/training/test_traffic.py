"""What replicas exchange: how much, and in which precision. Counted, and worked out by hand."""

from __future__ import annotations

import pytest

from tests.training.cells import LLAMA, cell
from tests.training.ranks import launch
from workflow_lib.records import Degrees

#: oneDNN and torch then use no instruction beyond AVX2, so that an x86 CPU has neither fp16 nor
#: bf16; other CPUs ignore it
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
#: parameters: four layers of 49 280, of which 128 are in norms; embedding and head of 384 × 64
#: each; and the last norm
LAYERS, END, NORM = 4 * 49_280, 384 * 64, 64
ALL = LAYERS + 2 * END + NORM
NORMS = 4 * 128 + NORM


@pytest.mark.slow
def test_a_cpu_without_fp16_holds_and_exchanges_weights_in_the_cells_precision(tmp_path):
    precisions = ("fp32", "bf16")
    cells = {
        precision: cell(
            *(LLAMA, Degrees(dp=2)), backend="deepspeed", zero_stage=3, precision=precision
        )
        for precision in precisions
    }

    results = launch("traffic", cells, tmp_path, environment=AVX2)

    assert isinstance(results, dict), results
    for precision in precisions:
        for rank in results[precision]:
            gathers = [counted for counted in rank if counted[1] == "gather"]
            # Matrices for each of two micro-batches; norms, which are small, once a step.
            assert gathers == [["dp", "gather", precision, 2 * (ALL - NORMS) + NORMS]]
