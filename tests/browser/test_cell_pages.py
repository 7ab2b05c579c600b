"""A cell's own page in a real browser: how one gets there, its charts, its files, its print."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from .conftest import CELLS, HOSTILE
from .test_report_page import printed_text

CELL = CELLS[0].id
ADDRESS = f"#cell={quote(CELL, safe='')}"


def shown(page):
    return page.evaluate("document.body.innerText")


@pytest.fixture
def cell(opened, report):
    page = opened(report, ADDRESS)
    page.wait(lambda: "Over time" in shown(page), "the cell's page")
    return page


def test_the_table_leads_to_it_and_back_to_where_one_was(opened, report):
    page = opened(report)
    whole = shown(page)
    first, *_ = page.find("link", "dp1", within=page.find("region", "Cells")[0])
    page.click(first)

    def is_the_cells() -> bool:
        # The report names the cell, too.
        return "How to rebuild this page" not in (text := shown(page)) and CELL in text

    page.wait(is_the_cells, "the cell's page")
    assert page.evaluate("location.hash") == ADDRESS
    # The page is there at once, and its content when the data is unpacked.
    page.wait(lambda: page.evaluate("document.title").startswith("dp1"), "the page's title")
    page.click(page.one("link", "All cells"))
    page.wait(lambda: shown(page) == whole, "the report as it was")


def test_an_address_opens_it_and_the_next_one_is_a_link_away(cell):
    assert CELL in shown(cell)
    cell.click(cell.one("link", "Next: tp2"))
    cell.wait(lambda: CELLS[1].id in shown(cell), "the next cell")
    cell.evaluate("history.back()")
    cell.wait(lambda: CELL in shown(cell), "the first cell")


@pytest.mark.parametrize("fragment", ["#cell=h200%2Fnothing", "#cell=%E0%A4%A"])
def test_an_address_of_no_cell_says_so(opened, report, fragment):
    page = opened(report, fragment)
    page.wait(lambda: "This report has no cell" in shown(page), "what is wrong")
    page.click(page.one("link", "All cells"))
    page.wait(lambda: "How to rebuild this page" in shown(page), "the report")


def test_a_chart_tells_its_values_to_mouse_and_keyboard(cell):
    chart = cell.one("application", "Power")
    told = cell.one("status")
    x, y = cell.middle(chart)
    cell.mouse("Moved", x, y)
    cell.wait(lambda: "520" in cell.text(told), "the reading in the middle")
    cell.focus(chart)
    cell.press("Home")
    cell.wait(lambda: "500" in cell.text(told), "the first reading")
    for _ in range(2):
        cell.press("ArrowRight")
    cell.wait(lambda: "520" in cell.text(told), "the third reading")
    assert "W" in cell.text(told)
    assert "60.0 (60.0 to 60.0) °C" in cell.text(told)


def test_dragging_over_a_chart_zooms_all_charts_and_a_button_undoes_that(cell):
    def times():
        script = "[...this.querySelectorAll('text')].map((t) => t.textContent).join(' ')"
        return [
            cell.call(chart, f"function () {{ return {script}; }}")
            for chart in cell.find("application")
        ]

    whole = times()
    assert cell.find("button", "Whole run") == []
    x, y = cell.middle(cell.one("application", "Power"))
    cell.drag((x - 100, y), (x + 100, y))
    undo = cell.one("button", "Whole run")
    assert all(old != new for old, new in zip(whole, times(), strict=True))
    cell.click(undo)
    cell.wait(lambda: times() == whole, "the whole run")
    assert cell.find("button", "Whole run") == []


def test_files_unfold_and_their_text_is_text(cell):
    assert "echo of run 1" not in shown(cell)
    cell.click(cell.one("DisclosureTriangle", "Job script of run 1"))
    cell.wait(lambda: "echo of run 1" in shown(cell), "the script")
    cell.click(cell.one("DisclosureTriangle", "Logs of run 1"))
    cell.wait(lambda: HOSTILE in shown(cell), "the log, as it was written")
    cell.click(cell.one("DisclosureTriangle", "Configuration"))


def test_a_cell_that_failed_says_why(opened, report):
    page = opened(report, f"#cell={quote(CELLS[3].id, safe='')}")
    page.wait(lambda: "there is nothing over time" in shown(page), "the cell's page")
    assert f"rank 3 wanted 2.25 GiB {HOSTILE}" in shown(page)


def test_it_prints_alone_with_its_files_and_nothing_to_click_on(cell, tmp_path):
    path = tmp_path / "cell.pdf"
    path.write_bytes(cell.pdf())
    printed = printed_text(path)
    for text in (CELL, "Key figures", "Over time", "echo of run 1", "step 5/5"):
        assert text in printed, f"{text} is not printed"
    for text in ("All cells", "Next:", "Whole run", "Drag to zoom", "How to rebuild"):
        assert text not in printed, f"{text} is printed"
