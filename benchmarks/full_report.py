"""How long a whole study's report takes to draw and to write, how large it is, and how fast to use.

    python benchmarks/full_report.py [--directory DIRECTORY] [--cells 305]

The tables are those of 305 cells with three repeats each on 32 and 64 GPUs, made up from raw files
(``measuring/reported_study.py``); with ``--directory`` they are kept for the next time. Figures are
drawn with one process and with two. Chromium then opens the page from its file without a network,
five times anew; each figure is a median. What is clicked on has answered when the frame after the
change is painted: two frames of 17 ms for nothing at all.

The peers show the same tables and figures without cells' pages: Snakemake's own report, and the
table of cells as pandas writes it in HTML. Exits 1 where a whole study's page has over 5 MB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import polars as pl

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measuring import reported_study
from benchmarks.reduce_64_gpus import cost_of, told
from tests.browser.chromium import Browser, Page, why_not
from tests.workflow.conftest import SNAKEMAKE, copy

CELLS, TIMES = 305, 5
BAR_BYTES = 5e6

#: defines told(act, done): milliseconds from act() until done() and the frame after
_STOPWATCH = """
globalThis.told = async (act, done) => {
  const frame = () => new Promise(requestAnimationFrame);
  const start = performance.now();
  act();
  while (!done()) await frame();
  await frame();
  await frame(); // the first comes before the change is laid out and painted
  return performance.now() - start;
}
"""
#: what a reader does, and how its answer is known
_HANDS = {
    "first sort": """(() => {
        const heads = [...document.querySelectorAll("#cells table thead th")];
        const head = heads.find((each) => each.innerText.includes("Throughput"));
        return told(() => head.querySelector("[role=button]").click(), () => head.ariaSort);
    })()""",
    "first filter": """(() => {
        const find = document.querySelector("#cells input[type=search]");
        const count = document.querySelector("#cells output");
        const before = count.value;
        return told(() => {
            find.value = "tp2";
            find.dispatchEvent(new Event("input", { bubbles: true }));
        }, () => count.value !== before);
    })()""",
    "a figure enlarged": """told(
        () => document.querySelector("figure button[aria-haspopup=dialog]").click(),
        () => document.querySelector("dialog[open] svg"))""",
    "a cell's page": """told(
        () => {
            document.querySelector("dialog[open]").close();
            document.querySelector("#cells tbody a").click();
        },
        () => document.querySelector("#cell-page svg.plot path"))""",
}


def opened(page: Page, path: Path) -> dict[str, float]:
    """Open a page; milliseconds until it is parsed and its scripts have run, and until loaded."""
    page.open(path)
    page.wait(lambda: page.evaluate(_ENTRY + ".loadEventEnd > 0"), f"{path} to be loaded", 60)
    return {
        "DOMContentLoaded": page.evaluate(_ENTRY + ".domContentLoadedEventEnd"),
        "loaded": page.evaluate(_ENTRY + ".loadEventEnd"),
    }


_ENTRY = "performance.getEntriesByType('navigation')[0]"


def used(page: Page, path: Path) -> dict[str, float]:
    """Open the report, and do once what a reader does; milliseconds of each."""
    found = opened(page, path)
    page.evaluate(_STOPWATCH)
    for name, script in _HANDS.items():
        found[name] = page.evaluate(script)
    return found


def medians(browser: Browser, path: Path, use: Callable[[Page, Path], dict[str, float]]) -> str:
    """What a page takes, as text: medians over tabs of their own."""
    of_tabs = []
    for _ in range(TIMES):
        page = browser.page()
        of_tabs.append(use(page, path))
        page.close()
    values = {name: statistics.median(tab[name] for tab in of_tabs) for name in of_tabs[0]}
    return ", ".join(f"{name} {value:.0f} ms" for name, value in values.items())


def size(path: Path) -> str:
    """A file's size as text."""
    return f"{path.stat().st_size / 1e6:.2f} MB"


def built(results: Path, directory: Path) -> Path:
    """Draw and write the report, printing what that takes; returns its path."""
    report = [sys.executable, "-m", "workflow_lib.report"]
    for processes in (1, 2):
        shutil.rmtree(directory / "figures", ignore_errors=True)
        drawing = ["--tables", directory, "--output", directory / "figures"]
        cost = cost_of([*report, "figures", *map(str, drawing), "--processes", str(processes)])
        count = len(list((directory / "figures").glob("*.svg")))
        print(told(f"{count} figures, {processes} process{'es' * (processes > 1)}", cost))
    writing = ["--sweep", reported_study.SWEEP, "--results", results, "--directory", directory]
    print(told("page", cost_of([*report, "page", *map(str, writing)])))
    return directory / "report.html"


def peers(directory: Path, temporary: Path) -> tuple[Path, Path]:
    """The same tables and figures, shown by Snakemake, and the cells' table, by pandas."""
    checkout = copy(temporary / "checkout")
    sweep = checkout.directory / "results" / "sweeps" / "tiny"
    sweep.parent.mkdir(parents=True)
    shutil.copytree(directory, sweep)
    of_snakemake = temporary / "snakemake.html"
    # Its figures, and not our page, which would be half of it.
    asked = ["results/sweeps/tiny/figures", "--report", str(of_snakemake)]
    subprocess.run(
        [str(SNAKEMAKE), "--profile", "profiles/local", *asked],
        cwd=checkout.directory,
        capture_output=True,
        check=True,
    )
    of_pandas = temporary / "pandas.html"
    cells = pd.DataFrame(pl.read_parquet(directory / "cells.parquet").to_dicts())
    of_pandas.write_text(cells.to_html(), encoding="utf-8")
    return of_snakemake, of_pandas


def main() -> int:
    """Make the study, report it, use the report, print all that; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, help="for the made-up study, which is kept there")
    parser.add_argument("--cells", type=int, default=CELLS, help=f"{CELLS} unless given")
    chosen = parser.parse_args()
    os.chdir(ROOT)
    sys.stdout.reconfigure(line_buffering=True)
    with tempfile.TemporaryDirectory() as temporary:
        results = (chosen.directory or Path(temporary, "study")).resolve()
        directory = reported_study.made(results, chosen.cells, cost_of)
        path = built(results, directory)
        print(f"report.html: {size(path)}")
        if reason := why_not():
            print(f"not opened: it {reason}")
        else:
            by_snakemake, by_pandas = peers(directory, Path(temporary))
            with Browser() as browser:
                print(f"in Chromium: {medians(browser, path, used)}")
                for name, peer in (("snakemake --report", by_snakemake), ("pandas", by_pandas)):
                    print(f"{name}, {size(peer)}: {medians(browser, peer, opened)}")
        return 1 if chosen.cells == CELLS and path.stat().st_size > BAR_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
