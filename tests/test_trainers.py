"""What a trainer of others is told of a cell, and which cells it is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.made_sweeps import made_sweep
from workflow_lib import plan
from workflow_lib.cells import PlannedCell, expand_study
from workflow_lib.records.training import Training
from workflow_lib.study import load_study
from workflow_lib.trainers import foreign

STEPS = {"warmup_steps": 2, "measured_steps": 8, "profiled_steps": 2}
SWEEP = made_sweep("A trainer of others", STEPS, {"zero_stage": 0})
WORDS = ["{python}", "x", "{layers}x{hidden_size}", "{sequence_length}", "{{{tp}}}", "{compile}"]
WORDS += ["{family}", "{ffn_hidden_size}", "{attention_heads}{kv_heads}", "{vocabulary_size}"]
WORDS += ["{micro_batches}", "{micro_batch_size}", "{zero_stage}", "{precision}", "{steps}"]

#: of a trainer that is told of experts
SPARSE = {
    "command": [*WORDS, "{experts}/{experts_per_token}"],
    "accepts": {"routing": ["dropless"]},
}

Planned = Callable[..., PlannedCell]


@pytest.fixture
def planned(study_without_sweeps: Path) -> Planned:
    """Plans one cell of a trainer ``mine``, with these axes and keys of its file."""

    def plan(axes: dict[str, Any] | None = None, **keys: Any) -> PlannedCell:
        spec = {"description": "mine", "command": WORDS, **keys}
        (study_without_sweeps / "trainers/mine.yaml").write_text(yaml.safe_dump(spec))
        entry = {"models": "llama3-tiny", "dp": 2, "trainer": "mine", **(axes or {})}
        path = study_without_sweeps / "sweeps/one.yaml"
        path.write_text(yaml.safe_dump(SWEEP | {"matrix": [entry]}))
        (cell,) = expand_study(load_study(study_without_sweeps))["one"].cells
        return cell

    return plan


def test_a_command_is_told_the_cell(planned):
    cell = planned()
    assert cell.reason is None
    words = ("{python}", "x", "4x128", "128", "{1}", "false", "llama", "384", "42", "257")
    words += ("2", "2", "0", "fp32", "{steps}")
    training = cell.cell.training
    assert training.trainer_command == words
    # The hook cannot see when the first step begins, so that there is one more.
    assert [foreign.steps_of_a_run(training, profiled) for profiled in (0, 2)] == [11, 5]
    assert foreign.steps_of_a_run(planned(steps="calls").cell.training) == 10


def test_nothing_is_estimated_of_another_trainers_memory(planned):
    cell = planned()
    assert cell.estimate is not None
    assert cell.estimate.memory is None
    assert cell.runs == (1, 0)
    assert cell.cell.training.backend == "own"


@pytest.mark.parametrize(
    ("axes", "keys", "axis"),
    [
        ({"recomputation": "full"}, {}, "recomputation"),
        ({"overlap": True}, {}, "overlap"),
        ({"pp": 2, "dp": 1}, {}, "pp"),
        ({"data": "python-sources"}, {}, "data"),
        ({"precision": "bf16"}, {"accepts": {"precision": ["fp32"]}}, "precision"),
        ({"zero_stage": 3}, {"accepts": {"zero_stage": [0, 1]}}, "zero_stage"),
        ({}, {"command": ["x", "{layers}"]}, "family"),
        ({}, {"command": ["x", "{model}"]}, "steps"),
        ({}, {"command": [w for w in WORDS if w != "{micro_batches}"]}, "micro_batches"),
        ({}, {"command": [*WORDS, "{banana}"]}, "banana"),
        ({}, {"accepts": {"banana": [1]}}, "banana"),
        ({}, {"accepts": {"precison": ["fp32"]}}, "did you mean precision"),
        ({}, {"accepts": [{"dp": [1]}, {"tp": [2]}]}, "tp 2; the cell asks for dp 2, tp 1"),
        ({"models": "mixtral-tiny"}, {"command": SPARSE["command"]}, "routing"),
        ({"models": "mixtral-tiny"}, {"accepts": {"routing": ["dropless"]}}, "experts"),
        ({"models": "mixtral-tiny", "balancing_loss": 0.01}, SPARSE, "balancing_loss"),
        ({"workload": "inference"}, {}, "workload"),
    ],
)
def test_a_cell_that_a_trainer_is_not_told_cannot_run(planned, axes, keys, axis):
    cell = planned(axes, **keys)
    assert cell.reason is not None
    assert axis in cell.reason
    assert "config/trainers/mine.yaml" in cell.reason


@pytest.mark.parametrize(
    ("axes", "keys"),
    [
        ({"recomputation": "full"}, {"accepts": {"recomputation": ["full"]}}),
        ({"tp": 2, "dp": 1, "sequence_parallel": False}, {}),
        ({"data": "python-sources"}, {"accepts": {"data": ["python-sources"]}}),
        ({}, {"accepts": {"routing": ["dropless"]}}),
        ({}, {"accepts": [{"dp": [1]}, {"dp": [2]}]}),
        # Without replicas there is nothing that ZeRO could divide.
        (
            {"dp": 1, "tp": 2, "zero_stage": 1},
            {"accepts": {"zero_stage": [3], "sequence_parallel": [True]}},
        ),
        ({"models": "mixtral-tiny"}, SPARSE),
        ({"models": "gpt3-tiny"}, {"command": [*WORDS, "{model}"]}),
    ],
)
def test_what_it_is_told_or_has_by_itself_can_run(planned, axes, keys):
    assert planned(axes, **keys).reason is None


def test_no_option_is_planned_without_a_word_of_it():
    considered = {*foreign._UNTOLD, *foreign._MUST_BE_TOLD, *foreign._OF_NO_TRAINER}
    rest = {field.name for field in dataclasses.fields(Training)} - considered
    of_protocol = {"learning_rate", "seed", "warmup_steps", "measured_steps"}
    assert {name for name in rest if not name.startswith("trainer")} == of_protocol


def test_a_cell_is_another_if_the_trainers_file_or_program_changes(planned, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("x.py").write_text("pass")
    ids = {planned(files=["x.py"]).cell.id, planned(files=["x.py"], steps="calls").cell.id}
    Path("x.py").write_text("pass # changed")
    ids |= {planned(files=["x.py"]).cell.id, planned({"trainer": "native"}).cell.id}
    ids.add(planned(files=["x.py"], differs="said otherwise").cell.id)
    assert len(ids) == 4
    assert sum("mine" in each for each in ids) == 3


def test_the_plan_says_what_differs(planned, study_directory, capsys):
    planned(differs="other weights")
    assert plan.main(["--sweep", "one", "--config", str(study_directory)]) == 0
    assert "other weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("axes", "keys", "key"),
    [
        ({}, {"files": ["nothing.py"]}, "nothing.py"),
        ({}, {"command": [*WORDS, "here.py"]}, "here.py"),
        ({}, {"files": ["../mine.py"]}, "../mine.py"),
        ({}, {"command": ["{python}", "not_there.py", "{layers}"]}, "not_there.py"),
        ({}, {"accepts": {"precision": ["bf17"]}}, "bf17"),
        ({}, {"accepts": [{"zero_stage": [0, "three"]}]}, "three"),
        ({}, {"command": ["{tp.__class__}"]}, "command"),
        ({}, {"command": ["{tp!r}"]}, "command"),
        ({}, {"command": ["{"]}, "command"),
        ({}, {"command": []}, "command"),
        ({"trainer": "yours"}, {}, "matrix.0.trainer"),
    ],
)
def test_a_mistake_is_told_by_file_and_key(planned, axes, keys, key, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("here.py").write_text("pass")
    with pytest.raises(ValueError, match="yaml") as refused:
        planned(axes, **keys)
    assert key in str(refused.value)
