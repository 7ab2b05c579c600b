"""The cells that the engine is measured with can be made for one to eight GPUs."""

from __future__ import annotations

import argparse

import pytest

from research import engine_on_gpus
from research.measuring.engine_cells import make_cells, option_sets
from research.measuring.engine_steps import covered, rates
from workflow_lib import memory
from workflow_lib.trainers import capabilities

_SETS = [(name, gpus) for name in sorted(option_sets(4)) for gpus in (2, 4, 8)]


def _options(name: str, **more: object) -> argparse.Namespace:
    said = {"platform": "h200", "sets": [name], "warmup": 1, "steps": 1, "layers": None}
    return argparse.Namespace(**said | more)


@pytest.mark.parametrize(("name", "gpus"), [*_SETS, ("llama3-8b-8l", 1)])
def test_every_set_has_cells_that_a_backend_runs(name, gpus):
    cells = list(make_cells(_options(name), gpus))
    assert cells
    for cell in cells:
        assert cell.degrees.world_size == gpus
        assert capabilities.refusal(cell.degrees, cell.training, cell.model) is None


def test_every_model_can_be_cut_to_a_number_of_layers():
    cells = list(make_cells(_options("twins", layers=4), 4))
    assert {cell.model.layers for cell in cells} == {4}
    assert all("-4l/" in cell.id for cell in cells)


def test_cells_that_a_shared_gpu_has_no_memory_for_are_left_out_aloud(capsys):
    one = next(make_cells(_options("llama3-8b-8l"), 4))
    needed = 4 * memory.estimate(one.model, one.degrees, one.training).allocated

    assert engine_on_gpus.fits_shared(one, 4, int(needed / 0.89))
    assert capsys.readouterr().out == ""
    assert not engine_on_gpus.fits_shared(one, 4, int(needed / 0.91))
    assert "4 ranks need" in capsys.readouterr().out


def test_ranks_that_share_a_gpu_have_no_speed():
    one = next(make_cells(_options("llama3-8b-8l"), 4))
    timed = {**rates(one, 2.0), "build_s": 1.0, "start_up_s": 9.0}
    kept = {"loss": 11.5, "peak_gb": 20.0, "estimate_gb": 21.0}

    found = engine_on_gpus.without_speeds({**timed, **kept}, ranks_per_gpu=4)

    reason = {"speeds_missing": "4 ranks share each GPU"}
    assert found == {**dict.fromkeys(timed), **kept, **reason}
    assert engine_on_gpus.line("one", found).split() == [
        *("–", "–", "–", "–", "20.0", "21.0", "–", "one", "loss", "11.500"),
    ]
    assert "9 s" in engine_on_gpus.line("one", {**timed, **kept})


@pytest.mark.parametrize(
    ("option", "among"), [("--sets", "'overlap', 'pipelines'"), ("--platform", "'h200', 'h200x1'")]
)
def test_a_name_that_is_none_is_refused_with_those_that_are(option, among, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["engine_on_gpus.py", option, "nosuch"])
    with pytest.raises(SystemExit) as ended:
        engine_on_gpus.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"argument {option}: invalid choice: 'nosuch'" in said
    assert among in said


def test_spans_that_run_at_once_count_once():
    # 0 to 3 and 4 to 6, whatever their order; 2 to 2.5 is within the first.
    assert covered([(4.0, 6.0), (0.0, 2.0), (1.0, 3.0), (2.0, 2.5)]) == 5.0
    assert covered([]) == 0.0
