"""``snakemake --report``: what it shows of a sweep, with which captions, without a network."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.browser.chromium import Browser, why_not
from tests.conftest import ROOT
from tests.programs import well
from tests.report.full_matrix import full_matrix
from tests.report.pages import draw
from tests.report.sweep import Planned, write_sweep
from tests.workflow.conftest import SNAKEMAKE, copy
from workflow_lib.report.__main__ import main
from workflow_lib.report.figures import figures

CAPTIONS = ROOT / "workflow_lib" / "report" / "captions"

HOSTILE = "A sweep </script><script>alert(1)</script> like any other"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep with tables, figures and a page, in a checkout where nothing was trained.

    Snakemake reports what there is of each rule's output, and only warns that it does not know
    when that was made.
    """
    checkout = copy(tmp_path_factory.mktemp("reported") / "it's a $(checkout)")
    checkout.write_sweep(description=HOSTILE)
    results = tmp_path_factory.mktemp("made-up")
    made = write_sweep(results, [Planned("tp1"), Planned("tp2")])
    draw(made)
    command = ["page", "--sweep", "tiny", "--results", str(results), "--directory", str(made)]
    assert main(command) == 0
    return Path(shutil.copytree(made, checkout.directory / "results" / "sweeps" / "tiny"))


@pytest.fixture(scope="module")
def report(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Snakemake's report of the sweep, made where every way to a network is shut."""
    path = tmp_path_factory.mktemp("report") / "snakemake.html"
    shut = {f"{scheme}_proxy": "http://127.0.0.1:9" for scheme in ("http", "https", "all")}
    command = [SNAKEMAKE, "--profile", "profiles/local", "results/sweeps/tiny/report.html"]
    done = well(programs.run([*command, "--report", path], sweep.parents[2], os.environ | shut))
    assert "downloading" not in done.stdout + done.stderr
    return path


def embedded(report: Path, name: str) -> Any:
    """A value that Snakemake writes into its page as a variable."""
    text = report.read_text(encoding="utf-8")
    (value,) = re.findall(rf'<script id="[\w-]+">\s*var {name} = (.*);\s*</script>', text)
    return json.loads(value)


def test_it_has_the_page_the_figures_and_the_tables_of_a_sweep(report, sweep):
    results = embedded(report, "results")
    figures = {f"figures/{path.name}" for path in (sweep / "figures").glob("*.svg")}
    assert len(figures) > 3
    shown = {str(Path(path).relative_to("results/sweeps/tiny")) for path in results}
    assert shown == {"report.html", "cells.parquet", "runs.parquet", *figures}
    for path, result in results.items():
        _, _, data = result["data_uri"].partition(";base64,")
        assert base64.b64decode(data) == (sweep.parents[2] / path).read_bytes()
    categories = embedded(report, "categories")
    assert list(categories) == ["tiny"]
    assert set(categories["tiny"]) == {"Page", "Figures", "Tables"}


def test_a_description_ends_no_script(report):
    assert "alert(1)" in str(embedded(report, "results"))
    assert "</script><script>alert" not in report.read_text(encoding="utf-8")


def test_every_caption_names_the_sweep_and_says_how_far_to_trust_what_is_shown(report):
    for path, result in embedded(report, "results").items():
        assert "<strong>tiny</strong>" in result["caption"], path
        assert "<strong>Limits.</strong>" in result["caption"], path
        assert "system-message" not in result["caption"], path
    assert "cell by cell" in embedded(report, "workflow_desc")


def test_every_kind_of_figure_has_a_caption_of_its_own():
    caption = (CAPTIONS / "figure.rst").read_text(encoding="utf-8")
    explained = set(re.findall(r'^  "(\w+)": \[', caption, flags=re.MULTILINE))
    drawn = {entry.stem.split("-")[0] for entry in figures(full_matrix(count=60, points=2))}
    assert len(drawn) > 8
    assert drawn <= explained, f"{CAPTIONS / 'figure.rst'} does not say what these show"


def test_it_opens_in_a_browser_without_a_network(report):
    if reason := why_not():
        pytest.skip(reason)
    with Browser() as browser:
        page = browser.page()
        page.open(report)
        page.click(page.one("link", "Results"))
        page.click(page.one("link", "Page"))
        page.wait(lambda: page.find("row"), "the list of pages")
        look, about = page.find("link", within=page.find("row")[1])
        page.click(look)
        page.wait(lambda: page.requests[-1].startswith("data:text/html"), "our page in theirs")
        page.click(about)
        said = "document.body.innerText.includes('which the page states')"
        page.wait(lambda: page.evaluate(said), "the caption")
        assert {url.partition(":")[0] for url in page.requests} == {"file", "data"}
        # What a part of Snakemake's page warns of is its own use.
        assert [each for each in page.problems if "tailwindcss" not in each] == []
