"""Operators timed alone: power by a counter's renewals, and the script on the CPU."""

import json
import subprocess
import sys

import pytest

from research import operators_on_gpus
from research.operators_on_gpus import PRODUCTS, mean_power_w


def test_power_is_of_the_renewals_within_a_span():
    # 200 W for a second, then 300 W; renewed every 0.1 s.
    renewals = [(i / 10, 20.0 * i if i <= 10 else 200 + 30.0 * (i - 10)) for i in range(21)]
    assert mean_power_w(renewals, 0.05, 0.95) == pytest.approx(200)
    assert mean_power_w(renewals, 0.55, 1.45) == pytest.approx((0.4 * 200 + 0.4 * 300) / 0.8)
    # Less than half of a span tells nothing of it.
    assert mean_power_w(renewals, 1.5, 3.0) is None
    assert mean_power_w([], 0.0, 1.0) is None


def test_both_turns_have_every_operator_at_its_own_shape(tmp_path, capsys):
    output = tmp_path / "operators.jsonl"
    arguments = ("--device=cpu", "--shrink=64", "--seconds=0.01", f"--output={output}")
    assert operators_on_gpus.main(arguments) == 0
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    forth, back = ([row for row in rows if row["turn"] == turn] for turn in (0, 1))
    named = [[(row["name"], row["shape"]) for row in turn] for turn in (forth, back)]
    assert named[0] == named[1][::-1]
    assert len({shape for name, shape in named[0] if name == "product, bf16"}) == len(PRODUCTS)
    assert all(row["call_s"] > 0 and row["power_w"] is None for row in rows)
    assert "–" in capsys.readouterr().out


@pytest.mark.long
def test_two_ranks_make_the_same_calls_of_every_exchange(tmp_path):
    output = tmp_path / "exchanges.jsonl"
    arguments = ("--device=cpu", "--shrink=256", "--seconds=0.01", f"--output={output}")
    subprocess.run((sys.executable, operators_on_gpus.__file__, "--gpus=2", *arguments), check=True)
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    first, other = ([(r["shape"], r["calls"]) for r in rows if r["rank"] == i] for i in (0, 1))
    assert first == other
    assert {row["name"] for row in rows} == {"all-gather", "all-reduce", "send", "receive"}
