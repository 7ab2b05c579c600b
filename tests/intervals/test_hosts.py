"""How far hosts differ: estimated from values of known effects, and as often exceeded as stated."""

import math

import numpy as np
import polars as pl
import pytest

from research.pages import hosts as page
from research.projection.reading import PUBLISHED, read_published
from workflow_lib.intervals import hosts
from workflow_lib.intervals.hosts import Group, Spread, pooled


def test_effects_of_hosts_that_do_not_have_all_cells():
    # Hosts of −1, 0 and 1 joined by cells of 10, 20 and 30; another cell joins two more.
    values = [
        *(("one", "x", 9.0), ("one", "y", 10.0), ("one", "y", 10.0)),
        *(("two", "z", 21.0), ("two", "y", 20.0), ("three", "z", 31.0), ("three", "x", 29.0)),
        *(("other", "v", 3.0), ("other", "w", 5.0), ("alone", "u", 1.0)),
    ]
    first, second = page.effects(values)
    assert first == pytest.approx({"x": -1.0, "y": 0.0, "z": 1.0})
    assert second == pytest.approx({"v": -1.0, "w": 1.0})
    assert page.standard_deviation(first) == pytest.approx(1.0)
    assert page.standard_deviation(second) == pytest.approx(math.sqrt(2))


def test_groups_are_pooled_by_their_degrees_of_freedom():
    found = pooled([(2, 0.01), (3, 0.02)])
    assert (found.degrees, found.sd) == (3, pytest.approx(math.sqrt((1e-4 + 2 * 4e-4) / 3)))
    # t of 3 degrees of freedom: 3.18245; its variance is 3.
    assert found.of_two(0.95) == pytest.approx(3.18245 * math.sqrt(2) * found.sd, rel=1e-4)
    assert found.predictive_sd == pytest.approx(math.sqrt(3) * found.sd)


@pytest.mark.parametrize("coverage", [0.95, 0.99])
@pytest.mark.parametrize("degrees", [4, 18])
def test_two_hosts_differ_by_more_as_rarely_as_stated_whatever_the_estimate(degrees, coverage):
    chance, trials = np.random.default_rng(5), 40_000
    of_estimate = np.sqrt(chance.chisquare(degrees, trials) / degrees)
    apart = np.abs(chance.normal(0, math.sqrt(2), trials))
    reach = Spread(1.0, degrees).of_two(coverage) * of_estimate
    assert np.mean(apart > reach) == pytest.approx(1 - coverage, abs=0.004)


def test_published_groups_are_those_of_the_published_rows():
    found = [each.group for each in page.of_published(read_published(PUBLISHED)[0])]
    assert found == [group for group in hosts.BUSY if group.temperature_sd_c is None]


def test_groups_of_runs_are_by_what_gpus_do():
    known = {
        **{"gpus": 1, "gpu_model": "H200", "workload": "pretrain", "emulated": None},
        **{"cuda_graphs": False, "decode_tokens_per_s_per_gpu": None, "decode_tokens_per_j": None},
    }
    runs = [
        {
            **known,
            "cell": cell,
            "host": host,
            "tokens_per_s_per_gpu": speed * math.exp(of),
            "tokens_per_j": 2 * math.exp(-of),
            "temperature_mean_c": 60.0 + 1000 * of,
            **({"emulated": "two daemons"} if cell == "e" else {}),
        }
        for cell, speed, ofs in (
            ("a", 10.0, (0.0, 0.01)),
            ("b", 20.0, (0.0, 0.01)),
            ("e", 1, (0, 0.1)),
        )
        for host, of in zip("xy", ofs, strict=True)
    ]
    busy, waiting = page.of_runs(pl.DataFrame(runs, infer_schema_length=None))
    assert busy.group == Group("training, 1 H200", 2, 0.0071, 7.1)
    assert (busy.waits, busy.cells) == (False, 2)
    assert busy.efficiency_sd == pytest.approx(0.01 / math.sqrt(2))
    assert busy.effects == pytest.approx((-0.005, 0.005))
    assert waiting.group == Group("training on emulated nodes, 1 H200", 2, 0.0707, 70.7)
    assert waiting.waits


def test_a_page_of_other_groups_than_the_product_holds_is_refused():
    with pytest.raises(ValueError, match=r"intervals/hosts\.py"):
        page.page_of([])
