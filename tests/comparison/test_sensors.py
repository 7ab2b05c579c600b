"""What sensors' errors do to ratios: by hand, by brute force over a grid, and by others' meters."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from workflow_lib.comparison.sensors import Read, Sensor, of_energies, of_peaks, over_sets
from workflow_lib.power_errors import GAIN_SHARE, OFFSET_W, SensorError, largest_share

GAIN_ALONE = SensorError(-0.1, 0.1, 0.0)

#: gain in % and offset in W of 19 GPUs against a meter (arXiv 2312.02741)
METERED = [
    *((-5.493, 3.4686), (-0.6464, -1.6615), (-1.772, 3.9206), (1.4763, -5.0714)),
    *((1.7246, -8.5276), (4.4503, -12.354), (0.394, -4.8016), (-3.3428, -5.7953)),
    *((-1.3034, 11.8485), (-2.5911, 2.5377), (-0.122, -0.3343), (6.363, -5.1553)),
    *((1.0577, 1.2307), (-9.4997, 8.764), (-4.5826, -1.2103), (-0.7221, 0.8832)),
    *((-2.8742, 1.4497), (-3.6307, -6.2932), (2.4105, 0.8057)),
]


def read(**power_w: float) -> Read:
    """A run by its GPUs' powers."""
    return Read({Sensor(gpu): value for gpu, value in power_w.items()}, sum(power_w.values()))


def test_the_bounds_hold_every_gpu_that_a_meter_was_beside():
    assert len(METERED) == 19
    assert max(abs(gain) for gain, _ in METERED) / 100 <= GAIN_SHARE
    assert max(abs(offset) for _, offset in METERED) <= OFFSET_W


@pytest.mark.parametrize("power_w", [80.0, 300.0, 692.0])
def test_no_metered_gpu_is_further_from_the_truth_than_a_reading_is_said_to_be(power_w):
    # 692 W: by hand, the truth may be as low as 679.5/1.1 = 617.73 W, and 692/617.73 = 1.1202.
    for gain, offset_w in METERED:
        true_w = (power_w - offset_w) / (1 + gain / 100)
        assert abs(power_w / true_w - 1) <= largest_share(power_w, 1)
    assert largest_share(692.0, 1) == pytest.approx(0.12024, abs=1e-5)
    assert largest_share(12.5, 1) is None


def test_two_gpus_by_hand():
    # Gains alone: 690 and 690 W against 558 and 623 W. The first GPU has the larger ratio, so it
    # reads 10 % too little and the second 10 % too much:
    # (690/0.9 + 690/1.1)/(558/0.9 + 623/1.1) = 1393.939/1186.364 = 1.174968; 1.168501 by readings.
    errors = dict.fromkeys("xy", GAIN_ALONE)
    low, high = of_energies([read(x=690, y=690)], [read(x=558, y=623)], errors)
    assert high == pytest.approx(1.174968 / 1.168501, abs=1e-6)
    # And the other way: (690/1.1 + 690/0.9)/(558/1.1 + 623/0.9) = 1393.939/1199.495 = 1.162105.
    assert low == pytest.approx(1.162105 / 1.168501, abs=1e-6)


def test_one_gpu_has_one_gain_and_its_offset_stays():
    assert of_energies([read(x=690)], [read(x=560)], {"x": GAIN_ALONE}) == pytest.approx((1, 1))
    # (690 − 12.5)/(560 − 12.5) over 690/560, and with +12.5 W.
    assert of_energies([read(x=690)], [read(x=560)], {}) == pytest.approx(
        (702.5 / 572.5 * 560 / 690, 677.5 / 547.5 * 560 / 690)
    )
    assert of_energies([read(x=12)], [read(x=560)], {}) is None


def test_other_gpus_have_other_gains():
    errors = dict.fromkeys("xyz", GAIN_ALONE)
    assert of_energies([read(x=690)], [read(z=560)], errors) == pytest.approx(
        (0.9 / 1.1, 1.1 / 0.9)
    )
    # With offsets: (702.5/0.9)/(547.5/1.1) over 690/560.
    high = of_energies([read(x=690)], [read(z=560)], {})[1]
    assert high == pytest.approx(702.5 / 0.9 / (547.5 / 1.1) * 560 / 690)


def test_a_site_that_metered_its_gpus_knows_more():
    errors = {"x": SensorError(-0.045, -0.035, 0.0), "z": SensorError(0.015, 0.025, 0.0)}
    low, high = of_energies([read(x=690)], [read(z=560)], errors)
    assert (low, high) == pytest.approx((1.015 / 0.965, 1.025 / 0.955))


def _true(a: Read, b: Read, ends: dict[Sensor, tuple[float, float]]) -> float:
    """The ratio of two runs' energies by the gain and offset of each sensor, over the readings'."""
    whole = []
    for side in (a, b):
        true = [(w - ends[s][1]) / (1 + ends[s][0]) for s, w in side.by_sensor.items()]
        whole.append(math.fsum(true) / math.fsum(side.by_sensor.values()))
    return whole[0] / whole[1]


@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_no_gains_and_offsets_of_a_grid_make_more_of_energies(count, seed):
    chance = random.Random(seed)
    # Each GPU on both sides, or on one.
    sides: tuple[dict[str, float], dict[str, float]] = ({"g0": 300.0}, {"g1": 500.0})
    for gpu in range(count):
        for side in sides if gpu < 2 else chance.choices(sides, k=1):
            side[f"g{gpu}"] = chance.uniform(150, 700)
    a, b = (read(**side) for side in sides)
    low, high = of_energies([a], [b], {})
    gains = (-0.1, 0.0, 0.1) if count == 4 else (-0.1, -0.05, 0.0, 0.05, 0.1)
    grid = list(itertools.product(gains, (-12.5, 0.0, 12.5)))
    found = [
        _true(a, b, {Sensor(f"g{gpu}"): each for gpu, each in enumerate(ends)})
        for ends in itertools.product(grid, repeat=count)
    ]
    # The grid holds the ends, so it reaches the bounds, and nothing in it passes them.
    assert (min(found), max(found)) == pytest.approx((low, high), rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_no_gains_and_offsets_of_a_grid_make_more_of_peaks(seed):
    chance = random.Random(seed)
    peaks = [{f"g{gpu}": chance.uniform(500, 720) for gpu in range(3)} for _ in "ab"]
    a, b = (read(**side) for side in peaks)
    low, high = of_peaks([a], [b], {})
    # At the worst an offset may lie between its ends, and so between those of the grid.
    grid = list(itertools.product((-0.1, 0.0, 0.1), (-12.5, -6.0, 0.0, 6.0, 12.5)))
    found = []
    for ends in itertools.product(grid, repeat=3):
        true = [
            max((side[f"g{gpu}"] - offset) / (1 + gain) for gpu, (gain, offset) in enumerate(ends))
            for side in peaks
        ]
        found.append(true[0] / true[1])
    readings = max(peaks[0].values()) / max(peaks[1].values())
    assert low * (1 - 1e-9) <= min(found) / readings <= low * 1.005
    assert high * 0.995 <= max(found) / readings <= high * (1 + 1e-9)


@pytest.mark.parametrize(
    ("on_a", "on_b", "share"),
    [
        ("xxy", "yxx", 0.0),  # each GPU as often
        ("xxy", "xyy", 1 / 3),
        ("xx", "xy", 1 / 2),
        ("xx", "yy", 1.0),
    ],
)
def test_runs_on_several_hosts_count_by_how_often_each_was_used(on_a, on_b, share):
    errors = dict.fromkeys("xy", GAIN_ALONE)
    a, b = ([read(**{gpu: 690.0}) for gpu in side] for side in (on_a, on_b))
    # The mean of logarithms: of share of the runs, one GPU reads 10 % less and another 10 % more.
    bound = (1.1 / 0.9) ** share
    assert over_sets(of_energies, a, b, errors) == pytest.approx((1 / bound, bound))
