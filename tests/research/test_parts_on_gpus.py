"""Exchanges and optimiser steps timed alone: what is counted, and the script with two ranks on the
CPU.
"""

import json
import os
import sys
from math import prod
from pathlib import Path

import pytest

from research import parts_on_gpus
from research.measuring import part_steps
from tests import programs
from tests.programs import well

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("size", [2**24, 2**26, 2**28, 2**30])
def test_layers_have_about_as_many_weights_as_asked(size):
    layers = part_steps.layer_shapes(size)

    assert sum(prod(shape) for layer in layers for shape in layer) == pytest.approx(size, rel=2e-3)
    # A layer of Llama 3 8B has 218 112 000 weights in seven matrices and two norms.
    assert len(layers) == -(-size // 218_112_000)
    assert {len(layer) for layer in layers} == {9}
    assert all(shape[1] in (4096, 14336) for layer in layers for shape in layer[:7])


@pytest.mark.parametrize(("ranks", "sizes"), [(1, []), (2, [2]), (6, [2]), (8, [2, 4, 8])])
def test_groups_have_powers_of_two(ranks, sizes):
    assert part_steps._group_sizes(ranks) == sizes


def test_what_a_rank_receives_of_100_mb_over_four_gpus():
    mb = dict.fromkeys(("all-gather", "reduce-scatter", "all-to-all"), 75)
    mb |= {"all-reduce": 150, "send/recv": 100}
    assert {name: 100 * share(4) for name, share in part_steps.SHARES.items()} == mb


def test_a_line_says_the_median_and_its_rate():
    # 1 MiB all-reduced over 4 ranks: each receives 1.5 MiB, here in 2 ms.
    record = {"part": "collective", "collective": "all-reduce", "ranks": 4}
    record |= {"message_bytes": 2**20, "received_bytes": 1.5 * 2**20}
    shown = parts_on_gpus.line({**record, "repeats_s": [0.001, 0.002, 0.009]})
    assert shown.split() == ["all-reduce", "4", "1", "MiB", "2.0000", "1.0000", "9.0000", "0.8"]


def script(*arguments, **environment):
    """What the script printed."""
    command = [sys.executable, "research/parts_on_gpus.py", *map(str, arguments)]
    done = well(programs.run(command, env=os.environ | environment))
    return done.stdout


def test_without_gpus_the_script_says_that_it_measured_nothing():
    assert "(skipped)" in script(CUDA_VISIBLE_DEVICES="")


@pytest.mark.slow
def test_two_ranks_on_the_cpu_time_every_part(tmp_path):
    output = tmp_path / "parts.jsonl"
    sizes = ["--messages", 65536, "--weights", 65536, "--repeats", 3, "--warmups", 1]
    said = script("--device", "cpu", *sizes, "--output", output, OMP_NUM_THREADS="1")

    *exchanges, optimiser = [json.loads(line) for line in output.read_text().splitlines()]
    received = {each["collective"]: each["received_bytes"] for each in exchanges}
    halves = dict.fromkeys(("all-gather", "reduce-scatter", "all-to-all"), 32768)
    assert received == {"all-reduce": 65536, "send/recv": 65536, **halves}
    assert {each["ranks"] for each in exchanges} == {2}
    assert optimiser["tensors"] == 9
    assert optimiser["bytes"] == 26 * optimiser["parameters"]
    for record in (*exchanges, optimiser):
        for name in ("repeats_s",) if "repeats_s" in record else ("clip_s", "step_s"):
            assert len(record[name]) == 3
            assert min(record[name]) > 0
    assert len(said.splitlines()) == 2 + 5 + 2


def test_events_on_a_gpu_time_each_work_of_each_repeat(monkeypatch):
    now_ms = 0.0

    class Event:
        def __init__(self):
            self.at_ms = now_ms

        def elapsed_time(self, later):
            return later.at_ms - self.at_ms

    def work(takes_ms):
        def run():
            nonlocal now_ms
            now_ms += takes_ms

        return run

    monkeypatch.setattr(part_steps, "_event", Event)
    monkeypatch.setattr(part_steps.torch.cuda, "synchronize", lambda: None)
    hold = work(1000)
    found = part_steps._gpu_times([work(2), work(5)], repeats=3, warmups=2, hold=hold)
    assert found == [[0.002] * 3, [0.005] * 3]
    # Both once to connect, the hold, and five rounds.
    assert now_ms == 7 + 1000 + 5 * 7
