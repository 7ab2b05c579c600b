"""Cells that other programs train, from a sweep to its tables."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from tests.programs import well
from tests.workflow.conftest import SWEEP, Checkout
from workflow_lib.report.caveats import trainers_differ

pytestmark = pytest.mark.slow

LOOP = """import sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(int(sys.argv[1])):
    model(torch.randn(8, 64)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""
CALLS = """import pathlib
import sys
import time
import torch.distributed as dist
import triptych_steps

dist.init_process_group("gloo")
pathlib.Path("said.txt").write_text(sys.argv[3])
for number in range(int(sys.argv[1])):
    with triptych_steps.step(tokens=int(sys.argv[2])) as step:
        time.sleep(0.05)
        step.loss(5.5 - number)
        dist.barrier()  # a step is one on all ranks
"""
#: what the programs above have by themselves
HAVE = {
    "model": ["llama3-tiny"],
    "sequence_length": [128],
    "micro_batch_size": [2],
    "global_batch_size": [8],
    "precision": ["fp32"],
    "zero_stage": [1],
    "steps": [5, 6],
}
PROGRAMS = {
    "loop": LOOP,
    "calls": CALLS,
    "bare": "import triptych_steps\nfor n in range(5):\n    with triptych_steps.step(): pass\n",
    "unlike": "import triptych_steps\ntriptych_steps.layout(pp=1, dp=1)\n" + CALLS,
    "option": "import argparse\nargparse.ArgumentParser().error('needs --rate')\n",
}
#: no shell sees it
HOSTILE = "{{}} $(touch touched) `touch touched`; touch 'touched' \"&\" |\\ *"
#: trainer → its command after Python, and how its steps are seen
TRAINERS = {
    "loop": (["programs/loop.py", "{steps}"], "hook"),
    "calls": (["programs/calls.py", "{steps}", "512", HOSTILE], "calls"),
    "other-tokens": (["programs/calls.py", "{steps}", "511", HOSTILE], "calls"),
    "other-layout": (["programs/unlike.py", "{steps}", "512", HOSTILE], "calls"),
    "too-few": (["programs/calls.py", "3", "512", HOSTILE], "calls"),
    "no-step": (["-c", "pass"], "hook"),
    "no-tokens": (["programs/bare.py"], "calls"),
    "option": (["programs/option.py"], "hook"),
    "dies": (["-c", "raise OSError('no such corpus')"], "hook"),
    "not-there": (["/programs/nothing.py"], "hook"),
    "edits": (["-c", "open('programs/loop.py', 'a').write('#'); raise SystemExit(3)"], "hook"),
}


def trainers(checkout: Checkout) -> None:
    """Write the programs and their files."""
    for name, text in PROGRAMS.items():
        path = checkout.directory / f"programs/{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    directory = checkout.directory / "config/trainers"
    directory.mkdir(exist_ok=True)
    for name, (words, steps) in TRAINERS.items():
        spec = {"description": name, "command": ["{python}", *words], "steps": steps}
        spec |= {"accepts": HAVE, "files": [w for w in words if Path(w).stem in PROGRAMS]}
        (directory / f"{name}.yaml").write_text(yaml.safe_dump(spec))


REPORT = "results/sweeps/tiny/report.html"


def rows_of(checkout: Checkout) -> dict[str, dict[str, Any]]:
    """Trainer → the row of its run."""
    runs = pl.read_parquet(checkout.directory / "results/sweeps/tiny/runs.parquet")
    return {row["trainer"]: row for row in runs.to_dicts()}


@pytest.mark.long
def test_trainers_of_others_end_in_tables_profiles_and_archives(checkout):
    trainers(checkout)
    checkout.write_sweep(
        matrix=[{"models": "llama3-tiny", "dp": 2, "trainer": ["loop", "calls"]}],
        protocol=SWEEP["protocol"] | {"profiled_steps": 2},
    )
    well(checkout.snakemake(REPORT))
    rows = rows_of(checkout)
    for row in rows.values():
        assert (row["outcome"], row["counted_steps"], row["backend"]) == ("completed", 4, "own")
        assert row["energy_per_token_j"] > 0
        assert row["tokens_per_s"] == pytest.approx(4 * 8 * 128 / row["measured_duration_s"])
        assert row["memory_estimate_error"] is None
        assert row["memory_peak_bytes"] > 2**20
    assert (checkout.directory / "said.txt").read_text() == HOSTILE.format()
    assert not (checkout.directory / "touched").exists()
    assert rows["calls"]["step_time_s"] >= 0.05
    assert (rows["loop"]["loss_first"], rows["calls"]["loss_first"]) == (None, 5.5)
    assert ["nothing checked" in rows[name]["cause"] for name in ("loop", "calls")] == [True, False]
    traces = pl.read_parquet(checkout.directory / "results/sweeps/tiny/traces.parquet")
    assert traces.select("steps", "on_gpu").rows() == [(2, False)] * 4
    page = (checkout.directory / REPORT).read_text(encoding="utf-8")
    of_both = trainers_differ([*rows.values()], checkout.directory / "results")
    assert [clause in page for clause in of_both] == [True, True]
    archiving = (sys.executable, "-m", "workflow_lib.archive")
    assert checkout.call(*archiving, "pack", "--sweep", "tiny").returncode == 0
    # A program that has changed is another cell, and the one that waits is not run with it.
    checkout.edit("programs/loop.py", "lr=0.01", "lr=0.02")
    assert ("run", "llama3-tiny") in checkout.planned_jobs()
    # Its archive has the program as it was.
    well(checkout.call(*archiving, "rebuild", "results/archives/tiny.zip", "--into", "again"))
    again = pl.read_parquet(checkout.directory / "again/results/sweeps/tiny/runs.parquet")
    assert again["cell"].to_list() == traces["cell"].unique(maintain_order=True).to_list()


@pytest.mark.long
def test_trainers_of_others_that_fail_say_why(checkout):
    trainers(checkout)
    names = ["native", *TRAINERS.keys() - {"loop", "calls"}]
    checkout.write_sweep(matrix=[{"models": "llama3-tiny", "dp": 2, "trainer": names}])
    done = checkout.snakemake(REPORT, "--keep-going")
    assert done.returncode != 0
    rows = rows_of(checkout)
    causes = {name: row["cause"] for name, row in rows.items() if row["outcome"] == "error"}
    told = {
        **{"other-tokens": "1022 tokens", "other-layout": "trains with dp 1"},
        **{"too-few": "3 of 5 steps", "no-step": "at most 1 of 6", "no-tokens": "no tokens"},
        **{"option": "needs --rate", "dies": "no such corpus", "not-there": "nothing.py"},
        "edits": "",
    }
    assert causes.keys() == told.keys()
    assert [name for name, words in told.items() if words not in causes[name]] == []
    assert rows["native"]["outcome"] == "completed"
    # Whoever edits a program while the workflow runs is told why jobs look for other cells.
    checkout.write_sweep(matrix=[{"models": "llama3-tiny", "dp": 2, "trainer": ["loop", "edits"]}])
    failed = checkout.snakemake(REPORT, "--keep-going")
    assert "tiny: its files" in failed.stderr
