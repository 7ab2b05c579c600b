"""Tables of the pages in docs/results."""

from __future__ import annotations

from pathlib import Path

from docs import parts
from tests.report.sweep import Planned, write_sweep
from workflow_lib.comparison.sides import read_side

MFU = {
    "bf16": {"mfu_causal": 0.5, "mfu_causal_bf16_peak": 0.5},
    "fp8": {"mfu_causal": 0.3, "mfu_causal_bf16_peak": 0.6},
}


def test_a_page_with_fp8_names_the_peak_of_each_mfu(tmp_path: Path) -> None:
    cells = [
        Planned("tp1", options=each, training={"precision": each}, measures=MFU[each])
        for each in ("bf16", "fp8")
    ]
    side = read_side(write_sweep(tmp_path, cells), "made-up")

    both = parts.table_of(side, side.cells)
    assert "| MFU, causal, of the precision's peak, % | MFU, causal, of the bf16 peak, % |" in both
    assert "| 30.00 | 60.00 |" in both
    of_bf16 = parts.table_of(side, [cell for cell in side.cells if cell["precision"] == "bf16"])
    assert "| MFU, causal, % | runs |" in of_bf16
    assert "of the bf16 peak" not in of_bf16
