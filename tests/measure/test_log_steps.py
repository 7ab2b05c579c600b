"""Steps by lines of a log."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from workflow_lib.measure.log_steps import LogSteps, PatternError, buffering, other_tokens

#: lines as programs print them: Megatron-LM's by the formats of its training_log, torchtitan 0.2.2,
#: NeMo and transformers as seen, DeepSpeed 0.19.8 by that of its engine
LINES = {
    "megatron-lm": " [2026-11-27 06:44:14] iteration {:8d}/     100 | consumed samples:          "
    "128 | elapsed time per iteration (ms): 500.0 | learning rate: 1.0E-04 | global batch size:   "
    "128 | lm loss: 1.076543E+01 | loss scale: 1.0 |",
    "torchtitan": "[titan] 2026-11-27 06:44:14,864 - root - INFO - \x1b[31mstep: {:2d}  "
    "\x1b[32mloss:  8.07654  \x1b[38;2;180;60;0mgrad_norm:  2.6822  \x1b[34mtps: 318,908",
    "deepspeed": "[INFO] [logging.py:128:log_dist] [Rank 0] step={}, skipped=0, lr=[0.001], "
    "mom=[0.9]",
    "nemo": "0: Training epoch 0, iteration 9/99 | lr: 5.6e-06 | global_batch_size: 32 | "
    "global_step: {} | reduced_train_loss: 2.778 | train_step_timing in s: 0.5 | consumed_samples: "
    "928",
}
BAR = " 25%|##5       | {}/40 [00:12<00:30,  1.02s/it]"


def follow(directory: Path, lines: list[str], pattern: str | None = None) -> list[dict[str, str]]:
    """The rows of lines that are written one after the other."""
    log = directory / "train.log"
    log.write_text("iteration 99/ 100 | of an earlier run\n", encoding="utf-8")
    steps = LogSteps(log, directory, pattern, warmup_steps=2)
    moments = iter(range(1000, 2000))
    with log.open("a", encoding="utf-8") as stream:
        rows = []
        for line in lines:
            stream.write(line)
            stream.flush()
            rows += steps.new_rows(float(next(moments)))
    with (directory / "log.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(LogSteps.COLUMNS)
        writer.writerows(rows)
    with (directory / "log.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("name", LINES)
def test_a_line_ends_the_steps_since_the_line_before(tmp_path, name):
    rows = follow(tmp_path, [LINES[name].format(step) + "\n" for step in (1, 2, 4)])
    assert [(row["step"], row["steps"], row["phase"]) for row in rows] == [
        ("2", "1", "warmup"),
        ("4", "2", "measured"),
    ]
    assert [row["pattern"] for row in rows] == [name] * 2
    assert [float(row["ended_unix_s"]) for row in rows] == [1001.0, 1002.0]


@pytest.mark.parametrize(
    ("steps", "phases"),
    [
        ((1001, 1002, 1003, 1004), ["warmup", "measured", "measured"]),
        ((1010, 1020, 1030), ["measured", "measured"]),
        ((10, 20), ["measured"]),
    ],
)
def test_the_warm_up_of_a_program_that_goes_on_does_not_count(tmp_path, steps, phases):
    rows = follow(tmp_path, [LINES["deepspeed"].format(step) + "\n" for step in steps])
    assert [row["phase"] for row in rows] == phases


def test_a_progress_bar_is_no_step_unless_it_is_asked_for(tmp_path):
    bars = [BAR.format(step) + "\r" for step in (1, 2, 3)]
    assert follow(tmp_path, bars) == []
    assert [row["step"] for row in follow(tmp_path, bars, "tqdm")] == ["2", "3"]


def test_a_bar_that_is_drawn_again_ends_no_step(tmp_path):
    # transformers' bar: at a step's end, and again after the line of its loss.
    parts = [f"\r{BAR.format(0)}"]
    for step in range(1, 6):
        parts += [f"\r{BAR.format(step)}", f"\r     \r{{'loss': '7.6'}}\n\r{BAR.format(step)}"]
    found = follow(tmp_path, parts, "tqdm")
    assert [row["step"] for row in found] == ["1", "2", "3", "4", "5"]
    assert [float(row["ended_unix_s"]) for row in found] == [1001.0 + 2 * n for n in range(5)]
    assert all(
        row["started_unix_s"] == before["ended_unix_s"] for before, row in itertools.pairwise(found)
    )


def test_a_line_that_comes_in_parts_is_one_line(tmp_path):
    line = LINES["deepspeed"]
    second = line.format(2)
    rows = follow(tmp_path, [line.format(1) + "\n", second[:60], second[60:] + "\n"])
    assert [(row["step"], row["ended_unix_s"]) for row in rows] == [("2", "1002.000000")]


def test_steps_that_go_back_begin_anew(tmp_path):
    lines = [LINES["deepspeed"].format(step) + "\n" for step in (5, 6, 1, 2)]
    assert [row["step"] for row in follow(tmp_path, lines)] == ["6", "2"]


def test_a_step_that_is_trained_again_begins_when_it_is_told_again(tmp_path):
    lines = [LINES["deepspeed"].format(step) + "\n" for step in (10, 20, 20, 30)]
    last = follow(tmp_path, lines)[-1]
    assert (last["step"], last["started_unix_s"]) == ("30", "1002.000000")


def test_a_pattern_of_ones_own_needs_a_step(tmp_path):
    rows = follow(tmp_path, ["at 1 now\n", "at 2 now\n"], r"at (?P<step>\d+) now")
    assert [(row["step"], row["pattern"]) for row in rows] == [("2", "own")]
    for wrong in (r"at (\d+)", "("):
        with pytest.raises(PatternError):
            LogSteps(tmp_path / "log", tmp_path, wrong, 0)


@pytest.mark.parametrize(("apart_ms", "kept_back"), [(1000.0, False), (500.0, True)])
def test_output_that_is_kept_back_is_found_out(tmp_path, apart_ms, kept_back):
    line = LINES["megatron-lm"].replace("500.0", str(apart_ms))
    follow(tmp_path, [line.format(step) + "\n" for step in (1, 2, 3, 4)])
    assert bool(buffering(tmp_path / "log.csv")) is kept_back


@pytest.mark.parametrize(("together", "kept_back"), [(1, False), (3, True)])
def test_lines_that_come_together_have_no_times_of_their_own(tmp_path, together, kept_back):
    lines = [LINES["deepspeed"].format(step) + "\n" for step in range(1, 31)]
    blocks = ["".join(lines[at : at + together]) for at in range(0, 30, together)]
    follow(tmp_path, blocks)
    assert ("19 of 28" in buffering(tmp_path / "log.csv")) is kept_back


@pytest.mark.parametrize(
    ("tokens_per_s", "gpus", "disagree"),
    [(637_816.0, 2, False), (318_908.0, 2, True), (1_275_632.0, 2, True), (None, 2, False)],
)
def test_tokens_that_disagree_with_the_log_are_found_out(tmp_path, tokens_per_s, gpus, disagree):
    follow(tmp_path, [LINES["torchtitan"].format(step) + "\n" for step in (1, 2, 3, 4)])
    assert bool(other_tokens(tmp_path / "log.csv", tokens_per_s, gpus)) is disagree


def test_a_log_without_tokens_contradicts_none(tmp_path):
    follow(tmp_path, [LINES["deepspeed"].format(step) + "\n" for step in (1, 2, 3, 4)])
    assert other_tokens(tmp_path / "log.csv", 1e6, 2) == ""
