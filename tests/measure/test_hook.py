"""Steps that torch's optimizer hook sees in programs that know nothing of it."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import programs
from tests.measure.runs import ROOT, environment, measure, measured

HOOK = ("sitecustomize.py", "triptych_steps.py")
SET_UP = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 4)
def backward(scale=1.0):
    loss = model(torch.randn(2, 4)).square().mean() * scale
    loss.backward()
"""
#: six steps each
PROGRAMS = {
    "accumulated gradients": """
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    for _ in range(3):
        backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "two optimizers": """
optimizers = torch.optim.SGD([model.weight], lr=0.1), torch.optim.AdamW([model.bias])
for _ in range(6):
    backward()
    for optimizer in optimizers:
        optimizer.step()
""",
    "an optimizer in the backward pass": """
of = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
for p in model.parameters():
    p.register_post_accumulate_grad_hook(lambda p: of[p].step())
for _ in range(6):
    backward()
""",
    "a step of the set-up": """
optimizer = torch.optim.AdamW(model.parameters())
for p in model.parameters():
    p.grad = torch.zeros_like(p)
optimizer.step()
for _ in range(6):
    backward()
    optimizer.step()
""",
    "backward passes that are not seen": """
first, second = torch.optim.SGD([model.weight], lr=0.1), torch.optim.SGD([model.bias], lr=0.1)
for p in model.parameters():
    p.grad = torch.zeros_like(p)
for _ in range(6):
    first.step()
    second.step()
""",
    "compiled": """
model.forward = torch.compile(model.forward, backend="eager")
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    backward()
    optimizer.step()
""",
}


def run(
    directory: Path, program: str, *flags: str, search: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program with the hook; its steps go to ``directory``."""
    hook = beside(directory / "hook")
    variables = {
        "PYTHONPATH": f"{hook}:{search}" if search else str(hook),
        "TRIPTYCH_STEPS": str(directory),
        "TRIPTYCH_WARMUP_STEPS": "2",
    }
    done = programs.run([sys.executable, *flags, "-c", program], env=environment(**variables))
    done.check_returncode()
    return done


def beside(directory: Path) -> Path:
    """The directory, with the files that measure copies beside a command."""
    directory.mkdir()
    for name in HOOK:
        shutil.copy(ROOT / "workflow_lib/trainers" / name, directory)
    return directory


def steps(directory: Path, name: str = "hook-rank0") -> list[dict[str, str]]:
    with (directory / f"{name}.csv").open(encoding="ascii", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_ends_where_the_next_one_begins(tmp_path, name):
    run(tmp_path, SET_UP + PROGRAMS[name])
    rows = steps(tmp_path)
    # Nobody knows when the first of the six began.
    assert [row["step"] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row["phase"] for row in rows] == ["warmup"] * 2 + ["measured"] * 3
    assert [row["ended_unix_s"] for row in rows[:-1]] == [row["started_unix_s"] for row in rows[1:]]
    assert {row["skipped"] for row in rows} == {"0"}


def test_a_step_that_a_scaler_leaves_out_is_marked(tmp_path):
    run(
        tmp_path,
        SET_UP
        + """
scaler = torch.amp.GradScaler("cpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(6):
    scaler.scale(model(torch.randn(2, 4)).mean() * (float("inf") if number == 3 else 1)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
""",
    )
    assert [row["skipped"] for row in steps(tmp_path)] == ["0", "0", "1", "0", "0"]


def test_another_sitecustomize_is_run_as_well(tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.of_the_site = 5\n")
    ended = run(tmp_path, "print(of_the_site)", search=str(tmp_path))
    assert ended.stdout == "5\n"
    assert not list(tmp_path.glob("*.csv"))  # a program without steps leaves no file


def test_an_isolated_python_is_not_seen_and_runs(tmp_path):
    program = SET_UP + PROGRAMS["accumulated gradients"] + "print('done')"
    assert run(tmp_path, program, "-I").stdout == "done\n"
    assert not list(tmp_path.glob("*.csv"))


def test_steps_in_the_code_come_before_those_of_the_hook(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(
        SET_UP
        + """
import triptych_steps
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    with triptych_steps.step(tokens=8) as step:
        backward()
        step.phase("backward")
        optimizer.step()
"""
    )
    options = ("--steps=hook", "--warmup-steps=2")
    assert measure(tmp_path, sys.executable, str(program), options=options).returncode == 0
    record = measured(tmp_path)
    assert (record["rung"], record["steps"]) == (4, ["steps/rank0.csv"])
    rows = steps(tmp_path / "run/steps", "rank0")
    assert [row["tokens"] for row in rows] == ["8"] * 6
    assert all(row["parts"].startswith("backward=") for row in rows)
    assert record["values"]["counted_steps"] == 4
    duration_s = record["values"]["measured_duration_s"]
    assert record["values"]["tokens_per_s"] == pytest.approx(32 / duration_s)
    assert len(steps(tmp_path / "run/steps")) == 5
    assert json.loads((tmp_path / "run/steps/rank0.json").read_text())["rank"] == 0


def test_a_subclass_of_a_trainer_tells_each_of_its_steps(tmp_path):
    program = """
import triptych_steps
class Trainer:
    def train_step(self, batches, number=0):
        return next(batches) + number
trainer = triptych_steps.torchtitan_trainer(Trainer, tokens=8)()
assert [trainer.train_step(iter([1]), number=2) for _ in range(4)] == [3] * 4
"""
    run(tmp_path, program)
    assert [row["tokens"] for row in steps(tmp_path, "rank0")] == ["8"] * 4


def test_steps_that_a_cell_did_not_ask_for_are_told_and_left_out(tmp_path):
    program = """
import os
os.environ["TRIPTYCH_STEPS_MOST"] = "3"
import triptych_steps
for _ in range(6):
    with triptych_steps.step(tokens=1): pass
"""
    told = run(tmp_path, program).stderr
    assert len(steps(tmp_path, "rank0")) == 3
    assert told.count("more steps than its cell asks for") == 1


def test_without_measure_a_step_is_nothing(tmp_path):
    program = "import triptych_steps\nwith triptych_steps.step(tokens=1) as s: s.phase('x')"
    subprocess.run(
        [sys.executable, "-c", program],
        env=environment(PYTHONPATH=str(beside(tmp_path / "hook"))),
        check=True,
        cwd=tmp_path,
    )
    assert [path.name for path in tmp_path.iterdir()] == ["hook"]
