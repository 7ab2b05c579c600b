"""The order in which runs are submitted."""

import json
import random

import pytest

from workflow_lib.order import in_order, places, write
from workflow_lib.records.paths import RunPaths

CELLS = [f"h200/llama3-8b/tp{n}" for n in range(1, 9)]
RUNS = [(cell, run) for cell in CELLS for run in (0, 1, 2, 3, 4)]


def test_each_block_has_one_run_of_each_cell_and_profiled_runs_come_last():
    blocks = [run for _, run in in_order(RUNS, seed=1)]
    assert blocks == [1] * 8 + [2] * 8 + [3] * 8 + [4] * 8 + [0] * 8
    assert sorted(in_order(RUNS, seed=1)) == sorted(RUNS)


def test_every_second_block_reverses_the_one_before():
    cells = [cell for cell, _ in in_order(RUNS, seed=1)]
    assert cells[8:16] == cells[:8][::-1]
    assert cells[24:32] == cells[16:24][::-1]
    assert cells[16:24] not in (cells[:8], cells[:8][::-1])


def test_the_order_is_the_seeds_alone():
    shuffled = random.Random(3).sample(RUNS, len(RUNS))
    assert in_order(shuffled, seed=1) == in_order(RUNS, seed=1)
    assert in_order(RUNS, seed=2) != in_order(RUNS, seed=1)


def test_another_cell_leaves_the_others_in_their_order():
    more = in_order([*RUNS, ("h200/gpt3-175b/tp8", 1)], seed=1)
    assert [run for run in more if "gpt3" not in run[0]] == in_order(RUNS, seed=1)


def test_over_seeds_a_cell_is_as_often_first_as_last():
    # Of 8 cells each is first in an eighth of all orders: 50 of 400, with a standard deviation of
    # √(400 · 1/8 · 7/8) = 6.6.
    first = [in_order(RUNS, seed)[0][0] for seed in range(400)]
    assert all(50 - 27 < first.count(cell) < 50 + 27 for cell in CELLS)


@pytest.mark.parametrize(
    ("files", "kept"), [([], False), (["job.json"], True), (["job.json", "failure.json"], False)]
)
def test_a_run_that_was_submitted_keeps_its_place_until_it_fails(tmp_path, files, kept):
    paths = RunPaths(tmp_path)
    old, new = (places(RUNS, seed)[RUNS[0]] for seed in (1, 2))
    write(paths, old)
    for name in files:
        (tmp_path / name).write_text("{}")
    write(paths, new)
    assert json.loads(paths.order.read_text())["seed"] == (1 if kept else 2)
