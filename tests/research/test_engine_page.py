"""What records of launches in turn say."""

import math
import re

import pytest

from benchmarks.measuring import pairs
from benchmarks.measuring.pairs import NEW_TOKENS
from research.pages import engine
from tests.texts import lacking, rows_of


def test_each_round_of_launches_is_in_the_reverse_order_of_the_one_before():
    assert pairs.in_rounds(["triptych", "peer", "other"], 3) == [
        *("triptych", "peer", "other"),
        *("other", "peer", "triptych"),
        *("triptych", "peer", "other"),
    ]


def test_the_ratio_is_a_geometric_mean_with_students_interval():
    # Logarithms 0.10 and 0.20: mean 0.15, standard error 0.05, t of one degree of freedom 12.706.
    ours = [100 * math.exp(0.1), 100 * math.exp(0.2)]
    found = pairs.ratio(ours, [100, 100])

    assert found.mean == pytest.approx(math.exp(0.15))
    assert math.log(found.t_low) == pytest.approx(0.15 - 12.706 * 0.05, abs=1e-4)
    assert math.log(found.t_high) == pytest.approx(0.15 + 12.706 * 0.05, abs=1e-4)
    assert pairs.ratio_in_words(ours, [100.0]) == "1.105 (1 pair, no interval)"
    assert pairs.ratio_in_words(ours, []) == "no pair"


CONDITIONS = {"gpu": "NVIDIA H200", "torch": "2.11.0", "begun": "2026-11-24T22:36Z"}


def test_ranks_that_shared_gpus_have_losses_and_memory_and_no_speeds():
    record = {
        **{**CONDITIONS, "gpus": 2, "ranks_per_gpu": 2, "steps": 3, "by": "triptych"},
        "cell": "h200/llama3-8b-4l/tp2-pp2-dp1-l3.1_mb1-gb16-bf16-zero1-compiled-torch_0",
        **{"tokens_per_s_per_gpu": None, "loss": 12.5803356, "stage_layers": [3, 1]},
        **{"peak_gb": 12.4215, "estimate_gb": 12.9659, "tokens": NEW_TOKENS},
    }
    page = engine.shared_page("shared", [record])
    (title,) = re.findall("^# .*$", page, re.MULTILINE)
    assert lacking(title, "4 ranks", "2 × NVIDIA H200", "2026-11-24") == []
    degrees, options = "`tp2-pp2-dp1-l3.1`", "`mb1-gb16-bf16-zero1-compiled-torch`"
    shown = ["llama3-8b, 4 layers", degrees, options, "3, 1", "12.58034", "12.4 / 13.0"]
    assert rows_of(page)[-1] == shown
    assert "tokens/s" not in page


def launch(options, speed=100, exposed=None, overlapped=0.0, communication_s=0.02, **stated):
    """The record of a launch of experts."""
    return {
        **{**CONDITIONS, "gpus": 2, "ranks_per_gpu": 1, "steps": 5, "by": "triptych"},
        "cell": f"h200/mixtral-8x7b-4l/tp1-pp1-dp2-ep2_{options}_0",
        **{"tokens_per_s_per_gpu": speed, "step_s": 0.5, "peak_gb": 58.25, "loss": 11.2},
        **{"communication_s": communication_s, "overlapped": overlapped, "exposed": exposed or {}},
        **{"tokens": NEW_TOKENS, **stated},
    }


RATIO = "1.100 (1.100 to 1.100, 2 pairs)"
OFF, ON = "mb1-zero1-torch", "mb1-zero1-overlap-torch"


def test_cells_with_and_without_overlap_are_paired_round_by_round():
    off = [launch(OFF, exposed={"SendRecv": 0.04}) for _ in range(2)]
    on = [
        launch(ON, 110, {"SendRecv": 0.01}, 0.5, 0.05),
        launch(ON, 110, {"SendRecv": 0.03, "AllGather": 0.01}, 0.7, 0.05),
    ]
    page = engine.overlap_page("overlap", [off[0], on[0], on[1], off[1]])

    assert re.search("^# .* 2 × NVIDIA H200, 2026-11-24$", page, re.MULTILINE)
    named, *values, exposed = rows_of(page)[-1][1:]
    assert named.split(", ") == ["`tp1-pp1-dp2-ep2`", f"`{OFF}`"]
    assert values == ["2 + 2", "100 → 110", RATIO, "58.2 → 58.2", "4.0 → 10.0", "0 → 60"]
    assert exposed.split("; ") == ["AllGather 0.0 → 0.5", "SendRecv 4.0 → 2.0"]


def test_a_lost_launch_leaves_out_its_partner_and_no_other():
    # The second round lost the launch without overlap: by their places, its partner of the third
    # would have been paired with that of the second.
    found = [(OFF, 100, 1), (ON, 110, 1), (ON, 150, 2), (OFF, 200, 3), (ON, 220, 3)]
    found.append(("mb2-zero1-torch", 90, 3))
    records = [launch(options, speed, round=f"begun/{n}") for options, speed, n in found]
    page = engine.overlap_page("overlap", records)

    assert rows_of(page)[-1][2:5] == ["2 + 2", "150 → 165", RATIO]
    left_out = page.splitlines()[-1]
    assert re.findall("`(.*?)`", left_out) == [records[2]["cell"], records[5]["cell"]]


@pytest.mark.parametrize(
    ("order", "rounds"),
    [((OFF, ON, ON, OFF, ON), [None] * 5), ((OFF, ON, ON), [None] * 3), ((OFF, ON, ON), [1, 1, 1])],
)
def test_launches_of_unknown_rounds_are_refused(order, rounds):
    records = [
        launch(options, **({"round": n} if n else {}))
        for options, n in zip(order, rounds, strict=True)
    ]
    with pytest.raises(ValueError, match=r"overlap\.jsonl.*round"):
        engine.overlap_page("overlap", records)
