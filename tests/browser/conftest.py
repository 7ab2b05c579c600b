"""One browser for all of these tests, and one made-up sweep's page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.report.pages import draw, write
from tests.report.sweep import Planned, write_sweep
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import SERIES, STEP_TIMES
from workflow_lib.results import run_directory
from workflow_lib.table_files import table, write_table

from .chromium import Browser, Page, why_not

#: markup that would ask for an address, or fail in the console, were it taken for markup
HOSTILE = "</script><img src=x onerror=missing()><b>bold</b>"
CELLS = [
    Planned("tp1", outcomes=(Outcome.COMPLETED,) * 3, measures={"tokens_per_s": 9_000.0}),
    Planned("tp2", measures={"tokens_per_s": 70_000.0}),
    Planned("tp4", measures={"tokens_per_s": 100_000.0}),
    Planned("tp8", outcomes=(Outcome.OUT_OF_MEMORY,), cause=f"rank 3 wanted 2.25 GiB {HOSTILE}"),
    Planned("tp16", model="llama3-70b", reason="needs 214 GB, a GPU has 141 GB"),
]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if reason := why_not():
        pytest.skip(reason)
    with Browser() as running:
        yield running


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a small sweep, in a directory whose name is no address as it stands.

    tp1 has 500 W from 0 to 2 s, 510 W from 2 to 4 s, and so on up to 540 W, on both of its GPUs.
    """
    results = tmp_path_factory.mktemp("a #1 & <b> 100%")
    directory = write_sweep(results, CELLS)
    cell = CELLS[0].id
    of_run = {"cell": cell, "run": 1}
    series = [
        {
            **of_run,
            **{"node": "node1", "gpu": gpu, "airflow": "front", "interval_s": 2.0},
            **{"elapsed_s": 2.0 * point + 1, "power_w": 500.0 + 10 * point, "temperature_c": 60.0},
        }
        for gpu in (0, 1)
        for point in range(5)
    ]
    steps = [
        {**of_run, "step": step, "phase": "measured", "counted": True}
        | {"elapsed_s": 2.0 * step, "step_time_s": 2.0}
        for step in range(5)
    ]
    write_table(table(series, SERIES), directory / "series.parquet")
    write_table(table(steps, STEP_TIMES), directory / "steps.parquet")
    for number in (1, 2, 3):
        run = RunPaths(run_directory(results, cell, number))
        run.logs.mkdir()
        run.script.write_text(f"#!/bin/bash\necho of run {number}\n", encoding="utf-8")
        (run.logs / "training.log").write_text(f"step 5/5 {HOSTILE}\n", encoding="utf-8")
    draw(directory)
    assert write(results, directory, "--description", "Cells for the browser.") == 0
    return directory / "report.html"


@pytest.fixture
def opened(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a file in a tab of its own; in the end none may have failed or asked for anything."""
    pages = []

    def opening(path: Path, fragment: str = "", width: int = 1280) -> Page:
        page = browser.page(width)
        pages.append(page)
        page.open(path, fragment)
        return page

    yield opening
    for page in pages:
        assert page.problems == []
        asked = [url.partition(":")[0] for url in page.requests]
        assert asked[:1] == ["file"], "the page itself was not seen: requests would not be, either"
        assert set(asked[1:]) <= {"data", "blob"}, page.requests
        page.close()
