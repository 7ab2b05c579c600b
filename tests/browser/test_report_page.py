"""The report in a real browser, without a network: what opens, sorts, scrolls and prints."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SECTIONS = (
    "Summary",
    "Cells",
    "Figures",
    "What did not complete",
    "Plan",
    "How it was measured, and the limits of that",
    "Environment",
    "How to rebuild this page",
)


def cells_shown(page):
    """The names of the cells, "tp4", in the order of the table's rows."""
    region = page.find("region", "Cells")[0]
    return [page.text(row).partition("\n")[0] for row in page.find("rowheader", within=region)]


def test_it_opens_from_a_file_with_every_section_and_figure(opened, report):
    page = opened(report)
    assert page.evaluate("document.title") == "made-up · Triptych"
    headings = [page.text(each) for each in page.find("heading")]
    assert [each for each in headings if each in SECTIONS] == list(SECTIONS)
    assert "Cells for the browser." in page.evaluate("document.body.innerText")
    names = page.evaluate("[...document.querySelectorAll('figure h3')].map((h) => h.innerText)")
    assert len(names) > 3
    for name in names:
        assert page.find("image", name), f"the figure {name} has no name for a screen reader"


def test_a_page_that_asks_for_more_than_itself_would_be_seen(browser, tmp_path):
    page = browser.page()
    path = tmp_path / "page.html"
    path.write_text(
        "<script>fetch('https://example.org/x'); console.error('told'); missing();</script>"
    )
    page.open(path)
    page.wait(lambda: len(page.requests) > 1, "the request")
    page.wait(lambda: len(page.problems) > 2, "the errors")
    assert page.requests == [path.as_uri(), "https://example.org/x"]
    assert any("missing is not defined" in each for each in page.problems)
    assert any("told" in each for each in page.problems)
    assert any("ERR_NAME_NOT_RESOLVED" in each for each in page.problems)
    page.close()


def test_every_link_within_the_page_leads_somewhere(opened, report):
    page = opened(report)
    nowhere = """[...document.querySelectorAll('nav a')].filter(
        (a) => !document.getElementById(a.getAttribute('href').slice(1))).map((a) => a.href)"""
    assert page.evaluate(nowhere) == []
    page.click(page.one("link", "Method"))
    assert page.evaluate("location.hash") == "#method"
    assert page.evaluate("document.getElementById('method').getBoundingClientRect().top") < 900


@pytest.mark.parametrize("by", ["mouse", "Enter", " "])
def test_a_column_sorts_by_its_numbers_and_back_with_missing_values_last(opened, report, by):
    page = opened(report)
    region = page.find("region", "Cells")[0]

    def sort():
        head = page.one("button", "Throughput tokens/s", within=region)
        if by == "mouse":
            page.click(head)
        else:
            page.focus(head)
            page.press(by)

    planned = cells_shown(page)
    sort()
    # As text, 9,001 would come before 100,001.
    assert cells_shown(page)[:3] == ["tp4", "tp2", "dp1"]
    assert set(cells_shown(page)[3:]) == {"tp8", "tp16"}
    (head,) = page.find("columnheader", "Throughput tokens/s", within=region)
    assert page.call(head, "function () { return this.ariaSort; }") == "descending"
    sort()
    assert cells_shown(page)[:3] == ["dp1", "tp2", "tp4"]
    assert set(cells_shown(page)[3:]) == {"tp8", "tp16"}
    assert page.call(head, "function () { return this.ariaSort; }") == "ascending"
    assert sorted(planned) == sorted(cells_shown(page))


def test_a_hint_says_to_scroll_exactly_where_columns_are_hidden(opened, report):
    page = opened(report, width=600)
    told = "document.querySelector('#cells .hint').checkVisibility()"
    hidden = "(b => b.scrollWidth > b.clientWidth)(document.querySelector('#cells .scroll'))"
    assert (page.evaluate(told), page.evaluate(hidden)) == (True, True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page scrolls"
    page.evaluate("document.querySelector('main').style.maxWidth = 'none'")
    page.resize(3000)
    page.wait(lambda: not page.evaluate(told), "the hint to go")
    assert not page.evaluate(hidden)


def test_it_prints_every_section_and_nothing_to_click_on(opened, report, tmp_path):
    page = opened(report)
    path = tmp_path / "report.pdf"
    path.write_bytes(page.pdf())
    printed = printed_text(path)
    for section in SECTIONS:
        assert section in printed, f"{section} is not printed"
    for cause in ("rank 3 wanted 2.25 GiB", "needs 214 GB, a GPU has 141 GB"):
        assert cause in printed
    # Where a table is cut off there is a hint, too.
    page.resize(600)
    page.wait(
        lambda: "scroll the table" in page.evaluate("document.body.innerText").lower(), "hint"
    )
    shown = page.evaluate("document.body.innerText")
    for text in ("Show all", "shown", "Enlarge", "Find", "Scroll the table sideways"):
        assert text in shown, f"{text} is not on the screen"
        assert text not in printed, f"{text} is printed, where nobody can click on it"


def printed_text(path: Path) -> str:
    """A PDF's text, with one space for each run of blanks."""
    done = subprocess.run(
        ["pdftotext", "-layout", str(path), "-"], capture_output=True, text=True, check=True
    )
    return re.sub(r"\s+", " ", done.stdout)


# ------------------------------------------------------------------------------- filters


def test_what_is_typed_and_chosen_narrows_the_table_and_is_counted(opened, report):
    page = opened(report)
    filters = page.one("search", "Cells")
    told = page.one("status", within=filters)
    assert page.text(told) == "5 of 5 shown"
    page.focus(page.one("searchbox", "Find", within=filters))
    page.write("TP1 ")
    page.wait(lambda: page.text(told) == "2 of 5 shown", "the count")
    assert cells_shown(page) == ["dp1", "tp16"]
    page.write("gpt3")
    page.wait(lambda: page.text(told) == "1 of 5 shown", "both words to count")
    page.click(page.one("button", "Show all", within=filters))
    page.wait(lambda: page.text(told) == "5 of 5 shown", "all cells")
    choose(page, page.one("combobox", "Outcome", within=filters), "out of memory")
    assert (page.text(told), cells_shown(page)) == ("1 of 5 shown", ["tp8"])
    page.click(page.one("button", "Throughput tokens/s", within=page.find("region", "Cells")[0]))
    assert cells_shown(page) == ["tp8"], "sorting shows what is filtered out"


def choose(page, box, wanted):
    """Choose an option with the keyboard, as far down as it is."""
    page.focus(box)
    selected = "function () { return this.selectedOptions[0].textContent; }"
    for _ in range(8):
        if page.call(box, selected) == wanted:
            return
        page.press("ArrowDown")
    raise AssertionError(f"no option is called {wanted!r}")


def test_what_is_filtered_out_is_printed_all_the_same(opened, report, tmp_path):
    page = opened(report)
    page.focus(page.one("searchbox", "Find"))
    page.write("tp4")
    page.wait(lambda: cells_shown(page) == ["tp4"], "the filter")
    path = tmp_path / "report.pdf"
    path.write_bytes(page.pdf())
    table = printed_text(path).partition("Cells Names leave out")[2].partition("steadiness")[0]
    assert {"dp1", "tp2", "tp4", "tp8", "tp16"} <= set(table.split())


# ------------------------------------------------------------------------------- figures


def test_pointing_at_a_mark_of_a_figure_tells_its_cell_value_and_interval(opened, report):
    page = opened(report)
    # Its three runs had 62, 63 and 64 °C.
    assert "dp1: Mean temperature 63.0 °C (62.0–64.0)" in marks(page)


def marks(page):
    """What all marks of all figures tell; a figure is drawn when it comes near."""
    count = page.evaluate("document.querySelectorAll('figure').length")
    for number in range(count):
        page.evaluate(f"document.querySelectorAll('figure')[{number}].scrollIntoView()")
        drawn = f"document.querySelectorAll('figure')[{number}].querySelector('svg') !== null"
        page.wait(lambda drawn=drawn: page.evaluate(drawn), "a figure")
    return page.evaluate(
        "[...document.querySelectorAll('figure svg title')].map((t) => t.textContent)"
    )


def test_a_figure_enlarges_zooms_by_keyboard_and_goes_back_to_its_place(opened, report):
    page = opened(report)
    page.click(page.find("button", "Enlarge:")[0])
    dialog = page.one("dialog")
    assert page.evaluate("document.querySelector('figure h3').innerText") in page.text(dialog)
    assert "100 %" in page.text(dialog)
    box = "function () { return this.querySelector('svg[viewBox]').getAttribute('viewBox'); }"
    whole = page.call(dialog, box)
    page.click(page.one("button", "Zoom in", within=dialog))
    assert "140 %" in page.text(dialog)
    near = page.call(dialog, box)
    assert near != whole
    page.focus(page.one("group", "plus and minus zoom", within=dialog))
    page.press("ArrowRight")
    assert page.call(dialog, box) != near
    page.press("0")
    assert page.call(dialog, box) == whole
    page.press("Escape")
    page.wait(lambda: not page.find("dialog"), "the dialog to close")
    assert page.evaluate("document.querySelector('figure svg') !== null"), "its figure is gone"
