"""Time limits by an assumed step are longer than what any published run took."""

from research.projection.layouts import assumed_chunks, usable
from research.projection.reading import read_published
from tests.conftest import ROOT
from workflow_lib.config import Platform
from workflow_lib.feasibility import ASSUMED_AT_MOST

RUNS = ROOT / "research" / "projection" / "data" / "published_runs.csv"


def test_no_published_step_took_longer_than_a_time_limit_allows_for():
    runs, _ = read_published(RUNS)
    layouts, _ = usable(runs, assumed_chunks(runs))
    timed = {run.line: run.step_time_s for run in runs if run.step_time_s is not None}
    mfu = Platform.model_fields["expected_mfu"].default
    repeated = {"full": 4 / 3}
    times = [
        timed[line] * mfu / (layout.ideal_s * repeated.get(layout.recomputation, 1))
        for line, layout in layouts.items()
        if line in timed
    ]
    assert len(times) > 500
    assert 0.95 * ASSUMED_AT_MOST < max(times) <= ASSUMED_AT_MOST
