"""The command on a run's directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.synthetic_run import cell
from workflow_lib.analysis.__main__ import main
from workflow_lib.analysis.tables import read_table
from workflow_lib.analysis.traces.analysis import analyse
from workflow_lib.records import KERNELS, TRACES, Degrees, RunPaths, write_json

from .kineto import collective, write


def profiled(directory: Path) -> RunPaths:
    """A run of two replicas, the second of which comes 60 µs late."""
    paths = RunPaths(directory)
    write_json(paths.cell, cell())
    for rank, start in ((0, 0), (1, 60)):
        write(paths.trace(rank), [collective(start, 100, [0, 1])])
    return paths


def test_a_profiled_run_gets_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = profiled(tmp_path / "run2")
    assert main(["traces", str(paths.directory), "--intra-node-gb-per-s", "100"]) == 0
    kernels = read_table(paths.kernels, KERNELS)
    ranks = read_table(paths.trace_times, TRACES)
    assert kernels.select("cell", "run", "rank", "class", "group", "fabric").rows() == [
        (cell().id, 2, rank, "all_reduce", "DP", "intra_node") for rank in (0, 1)
    ]
    # 2 MB in the 40 µs after the late rank came, of 100 GB/s.
    assert kernels["link_share"].to_list() == pytest.approx([0.5, 0.5])
    assert ranks["late_s"].to_list() == pytest.approx([0, 60e-6])
    assert "all_reduce" in capsys.readouterr().out


def test_the_same_traces_give_the_same_bytes(tmp_path: Path) -> None:
    paths = profiled(tmp_path / "run1")
    tables = (paths.kernels, paths.trace_times)
    made = [
        (main(["traces", str(paths.directory)]), *(t.read_bytes() for t in tables)) for _ in "ab"
    ]
    assert made[0] == made[1]


def test_a_run_that_was_not_profiled_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = RunPaths(tmp_path / "run1")
    write_json(paths.cell, cell())
    assert main(["traces", str(paths.directory)]) == 1
    assert "only a profiled run leaves them" in capsys.readouterr().err


GLOO = """
import os, torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule
rank = int(os.environ["RANK"])
store = "file://" + os.environ["STORE"]
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
layer = torch.nn.Linear(32, 32)
optimiser = torch.optim.AdamW(layer.parameters())
written = lambda profiler: profiler.export_chrome_trace(os.environ["TRACE"])
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=0, warmup=1, active=2),
             on_trace_ready=written) as profiler:
    for _ in range(3):
        layer(torch.ones(4, 32)).sum().backward()
        for parameter in layer.parameters():
            dist.all_reduce(parameter.grad)
        optimiser.step()
        profiler.step()
dist.destroy_process_group()
"""


def test_traces_that_torch_writes_of_two_gloo_ranks_are_read(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    paths = {rank: tmp_path / f"rank{rank}.json.gz" for rank in (0, 1)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", GLOO],
            env=os.environ
            | {"RANK": str(rank), "STORE": str(tmp_path / "store"), "TRACE": str(path)}
            | {"OMP_NUM_THREADS": "1"},
        )
        for rank, path in paths.items()
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    found = analyse(paths, Degrees(dp=2), ranks_per_node=2)
    assert dict(found.notes) == {0: (), 1: ()}
    assert found.ranks["steps"].to_list() == [2, 2]
    assert not any(found.ranks["on_gpu"])
    # Weight and bias in each of two steps.
    exchanged = found.kernels.filter(found.kernels["class"] == "all_reduce")
    assert exchanged.select("rank", "kernels", "group", "fabric").rows() == [
        (rank, 4, "DP", "intra_node") for rank in (0, 1)
    ]
    assert found.ranks["matched_collectives"].to_list() == [4, 4]
    assert sum(found.ranks["late_collectives"]) == 4
    assert {"gemm", "optimiser"} <= set(found.kernels["class"])
