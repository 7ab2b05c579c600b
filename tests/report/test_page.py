"""The page: complete, self-contained, and safe whatever the names in it."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import shlex
import urllib.parse
from pathlib import Path

import pytest

from tests.texts import edit
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import PLAN
from workflow_lib.report.__main__ import main
from workflow_lib.report.figures import (
    Tables,
    figures,
    figures_and_gaps,
    read_tables,
    write_figures,
)
from workflow_lib.report.figures.embedding import safe_svg
from workflow_lib.report.figures.style import EMULATED_MARK, SIMULATED_MARK
from workflow_lib.results import run_directory
from workflow_lib.table_files import read_table, table, write_table

from .full_matrix import cell_row, full_matrix, identity
from .full_matrix import write as write_tables
from .pages import again, build, draw, write
from .sweep import Planned, write_sweep
from .test_embedding import unpacked

HOSTILE = "<script>alert('x')</script>\"&$\\frac$"


def test_the_page_tells_what_there_is_and_what_became_of_it(tmp_path):
    description, needs = "Every layout of the study.", "needs 214 GB, a GPU has 141 GB"
    page = build(
        tmp_path,
        [
            Planned("tp1", outcomes=(Outcome.COMPLETED,) * 3),
            Planned("tp2", measures={"tokens_per_s": 99_000.0, "temperature_mean_c": 80.0}),
            Planned("tp4", outcomes=(Outcome.OUT_OF_MEMORY,), cause="rank 3 wanted 2.25 GiB"),
            Planned("tp8", outcomes=(Outcome.TIMEOUT, None), cause="ended at 30 min"),
            Planned("tp16", reason=needs),
        ],
        "--description",
        description,
    )
    assert description in page.text
    assert "2 of 5 cells" in page.text
    assert "4 of 7 runs" in page.text
    assert "Fastest: tp2 (8 GPUs), 99,000 " in page.text
    # tp1's repeats have 62, 63 and 64 °C, and 40 001 to 40 003 tokens/s.
    assert ": dp1 (8 GPUs), 63.0 °C (62.0–64.0)." in page.text
    assert "40,001–40,003" in page.text
    for cause in ("rank 3 wanted 2.25 GiB", "ended at 30 min", needs, "no job of it", "±6.0 %"):
        assert cause in page.text
    assert "SIMULATED" not in page.text
    # 8 cells feasible at 4 GPU-hours each: tp1, tp2, tp4, tp8.
    assert "16.0 GPU-hours" in page.text


def test_inference_has_its_own_columns_and_training_does_not_show_them(tmp_path):
    decoding = {"decode_tokens_per_s_per_gpu": 321.0}
    generating = Planned("tp1", workload="inference", measures=decoding)
    other = Planned("tp4", workload="inference")
    of_inference, of_training = (
        MEASURES[name].heading for name in ("decode_tokens_per_s_per_gpu", "mfu_causal")
    )
    alone = build(tmp_path / "alone", [generating, other]).text
    assert "decoding: dp1 (8 GPUs), 321 " in alone
    assert of_inference in alone
    assert of_training not in alone
    assert "Fastest: " not in alone

    training = build(tmp_path / "training", [Planned("tp1")]).text
    assert of_inference not in training
    assert "Fastest decoding" not in training

    both = build(tmp_path / "both", [generating, Planned("tp2")]).text
    assert of_inference in both
    assert of_training in both
    assert "Fastest" not in both, "a cell of each workload has none to be compared with"


def test_the_bf16_peak_has_a_column_where_a_cell_has_another(tmp_path):
    in_bf16 = Planned("tp1", training={"precision": "bf16"}, measures={"mfu_causal_bf16_peak": 0.4})
    in_fp8 = Planned("tp2", training={"precision": "fp8"}, measures={"mfu_causal_bf16_peak": 0.6})
    heading = MEASURES["mfu_causal_bf16_peak"].heading
    assert heading not in build(tmp_path / "alone", [in_bf16]).text
    assert heading in build(tmp_path / "both", [in_bf16, in_fp8]).text


def test_the_page_names_every_convention_of_mfu_that_has_a_column(tmp_path):
    page = build(tmp_path, [Planned("tp1")])
    conventions = {name.removesuffix("_bf16_peak") for name in MEASURES if name.startswith("mfu_")}
    told = ("6·N·tokens", "causal attention", "as vendors count", "as torchtitan counts")
    assert len(conventions) == len(told)
    assert [each for each in told if each not in page.text] == []


def test_the_page_loads_nothing(tmp_path):
    page = build(tmp_path, [Planned(), Planned("tp4", simulated=True)])
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "img", "base")
        assert tag != "form" or not attributes.keys() & {"action", "method", "target"}
        for name in ("src", "href", "xlink:href", "action", "data"):
            value = attributes.get(name) or "#"
            # A link to a file beside the page is followed by people alone.
            beside = tag == "a" and re.fullmatch(r"figures/[\w.-]+\.(svg|pdf)", value)
            assert beside or value.startswith(("#", "data:image/png;base64,")), (tag, name, value)
    assert "@import" not in page.source
    assert "fetch(" not in page.source
    assert set(re.findall(r"url\((.)", page.source)) <= {"#"}
    assert sum(tag == "svg" for tag, _ in page.tags) == 5


def test_ids_are_unique_and_references_lead_somewhere(tmp_path):
    page = build(tmp_path, [Planned(), Planned(model="mixtral-8x7b")])
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    markup = page.source.partition("<script>")[0]
    references = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', markup))
    targets = {first or second for first, second in references}
    cells = {target for target in targets if target.startswith("cell=")}
    assert targets - cells <= set(ids)
    assert {urllib.parse.unquote(cell.removeprefix("cell=")) for cell in cells} == {
        Planned().id,
        Planned(model="mixtral-8x7b").id,
    }


@pytest.mark.parametrize(("others", "how_many"), [([], "Every"), ([Planned("tp2")], "Some")])
def test_simulated_readings_have_a_banner(tmp_path, others, how_many):
    page = build(tmp_path, [Planned("tp1", simulated=True), *others])
    assert f"{SIMULATED_MARK}. {how_many} " in page.text


def test_emulated_nodes_have_a_banner_and_their_figures_and_cells_say_so(tmp_path):
    words = "two daemons of <b>one</b> host"
    page = build(tmp_path / "emulated", [Planned("tp1", emulated=words), Planned("tp2")])
    assert f"{words}." in page.text.partition(EMULATED_MARK)[2]
    assert "<b>one" not in page.source.partition("<script>")[0]
    sweep = tmp_path / "emulated" / "sweeps" / "made-up"
    drawn = [path.read_text(encoding="utf-8") for path in (sweep / "figures").glob("*.svg")]
    assert drawn
    assert all(EMULATED_MARK in figure for figure in drawn)
    tables = read_tables(sweep)
    emulated = {cell["parallelism"]: cell["emulated"] for cell in tables.cells}
    assert emulated == {"tp1": words, "tp2": None}
    assert all(entry.caption.endswith(f"{words}.") for entry in figures(tables))
    real = build(tmp_path / "real", [Planned("tp1"), Planned("tp2")])
    assert "emulated" not in real.text.lower()


def test_names_are_text_whatever_they_hold(tmp_path):
    hostile = HOSTILE.replace("/", "∕")
    page = build(
        tmp_path,
        [
            Planned(model=hostile, options=hostile),
            Planned(model=hostile, options="b", outcomes=(Outcome.ERROR,), cause=HOSTILE),
            Planned("tp4", reason=HOSTILE),
        ],
        "--description",
        HOSTILE,
    )
    # The page's own, and its data.
    assert [tag for tag, _ in page.tags].count("script") == 2
    assert page.text.count("alert(") >= 5
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_a_sweep_of_which_nothing_completed_has_a_page(tmp_path):
    cells = [Planned(outcomes=(None,)), Planned("tp4", reason="too large")]
    text = build(tmp_path / "some", cells).text
    assert "0 of 2 cells" in text
    assert "no cell has" in text
    assert "Fastest" not in text
    assert "0 of 0 cells" in build(tmp_path / "none", []).text


def test_environments_are_listed_by_distinct_value_and_runs_without_one_counted(tmp_path):
    cells = [Planned(outcomes=(Outcome.COMPLETED,) * 2), Planned("tp4")]
    page = build(tmp_path, cells)
    assert "packages.torch 2.13.0" in page.text
    assert "node1 (2 runs) ; node2 (1 run)" in page.text
    assert "nvidia_driver –" in page.text
    assert "2023-11-14 22:13 UTC" in page.text
    assert "no record" not in page.text
    RunPaths(run_directory(tmp_path, cells[1].id, 1)).environment.unlink()
    assert "1 ended run has no" in again(tmp_path).text


def test_cells_whose_names_are_alike_are_called_by_what_differs(tmp_path):
    cells = [
        Planned("tp1", digest=digest, training={"learning_rate": rate})
        for digest, rate in (("aaaaaaaa", 0.001), ("bbbbbbbb", 0.01))
    ]
    text = build(tmp_path, cells).text
    assert "dp1 lr 0.001" in text
    assert "dp1 lr 0.01 " in text


def test_the_commands_rebuild_this_page_and_reduce_no_other_runs(tmp_path):
    description = "-- It's “all” of $HOME & <more>"
    results = tmp_path / "re sults"
    cells = [Planned("tp1"), Planned("tp2", outcomes=(None,)), Planned("tp4", reason="too large")]
    page = build(results, cells, f"--description={description}")
    (commands,) = re.findall(r"<pre>(.*?)</pre>", page.source, re.DOTALL)
    where, _, rest = html.unescape(commands).replace("\\\n", "").partition("\n")
    assert where.startswith("results=results ")
    loop, *lines = rest.partition("done\n")[::2]
    runs = shlex.split(loop.partition(";")[0])
    assert runs == ["for", "run", "in", str(run_directory(Path("$results"), cells[0].id, 1))]
    (collecting, figures, writing) = lines[0].splitlines()
    assert shlex.split(collecting)[:4] == ["python", "-m", "workflow_lib.analysis", "collect"]
    assert shlex.split(figures)[:4] == ["python", "-m", "workflow_lib.report", "figures"]
    path = results / "sweeps" / "made-up" / "report.html"
    path.unlink()
    assert main(shlex.split(writing.replace('"$results"', shlex.quote(str(results))))[3:]) == 0
    assert path.read_text(encoding="utf-8") == page.source


def test_the_page_holds_no_path_of_the_machine_that_made_it(tmp_path):
    assert str(tmp_path) not in build(tmp_path, [Planned(), Planned("tp4")]).source


def test_an_unknown_estimate_makes_the_total_unknown(tmp_path):
    directory = write_sweep(tmp_path, [Planned(), Planned("tp4")])
    plan = read_table(directory / "plan.parquet", PLAN).to_dicts()
    plan[0]["gpu_hours"] = None
    write_table(table(plan, PLAN), directory / "plan.parquet")
    draw(directory)
    assert "– GPU-hours estimated" in again(tmp_path).text


def test_the_page_is_the_same_bytes_each_time(tmp_path):
    first = build(tmp_path, [Planned()]).source
    assert build(tmp_path, [Planned()]).source == first


def test_a_missing_figure_is_one_message(tmp_path, capsys):
    directory = write_sweep(tmp_path, [Planned()])
    assert write(tmp_path, directory) == 1
    said = capsys.readouterr().err
    assert "parallelism-gpt3-175b.svg" in said
    assert said.count("\n") == 1
    assert not (directory / "report.html").exists()


def refusal(directory: Path, *changes: tuple[str, str]) -> str:
    """Why a figure of this package is refused once it holds other texts."""
    cells = [cell_row(identity("h200", "m", Degrees(tp=2, dp=2)), tokens_per_s=1.0)]
    write_figures(Tables(tuple(cells), (), ()), directory, ("svg",))
    figure = directory / "parallelism-m.svg"
    for old, new in changes:
        edit(figure, old, new)
    with pytest.raises(RecordError) as error:
        safe_svg(figure, "stem")
    assert str(error.value).count(str(figure)) == 1
    assert len(str(error.value)) < len(str(figure)) + 300
    return str(error.value)


@pytest.mark.parametrize("encoding", ["tf-8", "utf-7", "u" + "9" * 5000])
def test_a_figure_in_an_encoding_that_does_not_exist_is_refused(tmp_path, encoding):
    assert "not an SVG" in refusal(tmp_path, ("utf-8", encoding))


@pytest.mark.parametrize(
    ("planted", "refused"),
    [
        ("<script>alert(1)</script>", "an element 'script'"),
        ("<SCRIPT>alert(1)</SCRIPT>", "an element 'SCRIPT'"),
        ('<a href="https://example.org">x</a>', "an element 'a'"),
        ('<rect onload="alert(1)"/>', "an attribute onload="),
        ('<rect ONERROR="alert(1)"/>', "an attribute ONERROR="),
        ("<img/src=x/onerror=alert(1)>", "not an SVG"),
        ('<image xlink:href="//example.org/x.png"/>', "an attribute href='//example.org/x.png'"),
        ('<image xlink:href="data:image/svg+xml;base64,AA=="/>', "an attribute href='data:image/s"),
        ('<use xlink:href="javascript:alert(1)"/>', "an attribute href='javascript:"),
        ('<rect style="fill:url(https://example.org/x)"/>', "a style 'fill:url(https"),
        ('<rect style="background:url(x)"/>', "a style 'background"),
        ("<foreignObject></foreignObject>", "an element 'foreignObject'"),
        ('<iframe srcdoc="&lt;script&gt;1&lt;/script&gt;"/>', "an element 'iframe'"),
        ('<meta http-equiv="refresh" content="0;url=//example.org"/>', "an element 'meta'"),
        ("<style>@import url(//example.org/x.css)</style>", "a style of its own"),
        ('<h:script xmlns:h="http://www.w3.org/1999/xhtml">1</h:script>', "a name of 'http://www"),
        ("<animate attributeName='x'/>", "an element 'animate'"),
        (f"<{'a' * 5000}/>", "an element 'aaa"),
        ("<svg/>", "an element 'svg'"),
    ],
)
def test_a_tampered_figure_is_refused(tmp_path, planted, refused):
    assert refused in refusal(tmp_path, ("</svg>", planted + "</svg>"))


@pytest.mark.parametrize("entity", ["&all;", "text"])
def test_a_figure_with_a_document_type_is_refused(tmp_path, entity):
    doctype = '<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY all "&a;&a;">]><svg '
    text = f"<text>{entity}</text></svg>"
    assert "document type" in refusal(tmp_path, ("<svg ", doctype), ("</svg>", text))


def test_a_page_with_a_tampered_figure_is_not_written(tmp_path, capsys):
    build(tmp_path, [Planned()])
    figure = next((tmp_path / "sweeps" / "made-up" / "figures").glob("*.svg"))
    figure.write_text("<svg onload='alert(1)'></svg>", encoding="utf-8")
    assert write(tmp_path, tmp_path / "sweeps" / "made-up") == 1
    assert str(figure) in capsys.readouterr().err


def test_a_browser_may_run_the_pages_own_script_alone(tmp_path):
    page = build(tmp_path, [Planned()])
    (script,) = re.findall(r"<script>(.*?)</script>", page.source, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    metas = [attributes for tag, attributes in page.tags if tag == "meta"]
    (policy,) = (
        str(meta["content"]) for meta in metas if meta.get("http-equiv", "").startswith("Content-S")
    )
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none';")


def test_large_figures_are_packed_and_hold_what_plain_ones_do(tmp_path, monkeypatch):
    plain = build(tmp_path, [Planned(), Planned("tp4")])
    monkeypatch.setattr("workflow_lib.report.figures.embedding._MOST_PLAIN_BYTES", 1000)
    source = again(tmp_path).source
    packed = re.findall(r'<script [^>]*id="data-figure-\d+">[^<]*</script>', source)
    assert len(packed) == sum(tag == "svg" for tag, _ in plain.tags) > 2
    assert "<svg" not in source.partition("<script>")[0]
    for element in packed:
        assert unpacked(element) in plain.source
    assert source.count("<noscript>") == len(packed)


def test_the_table_of_cells_can_be_filtered_by_what_cells_differ_in(tmp_path):
    page = build(tmp_path, [Planned("tp1"), Planned("tp2", outcomes=(Outcome.OUT_OF_MEMORY,))])
    names = [attributes.get("name") for tag, attributes in page.tags if tag in ("select", "input")]
    # There is one model and one platform.
    assert names == ["text", "outcome"]
    (form,) = (attributes for tag, attributes in page.tags if tag == "form")
    # Until the script can serve it.
    assert "hidden" in form
    rows = [each["data-outcome"] for _, each in page.tags if "data-outcome" in each]
    assert rows == ["completed", "out of memory"]


def test_figures_that_are_not_drawn_say_why_and_those_over_time_lie_beside(tmp_path):
    directory = tmp_path / "sweeps" / "made-up"
    write_tables(full_matrix(count=2, points=10), write_sweep(tmp_path, [Planned()]))
    draw(directory)
    write_table(table([], PLAN), directory / "plan.parquet")
    page = again(tmp_path)
    beside = [each.get("href") for tag, each in page.tags if tag == "a"]
    assert "figures/power-h200-gpt3-175b.svg" in beside
    assert 'id="power-h200-gpt3-175b-title"' not in page.source
    (undrawn_title, why), *_ = figures_and_gaps(read_tables(directory))[1]
    assert f" {undrawn_title}: {why}" in page.text
