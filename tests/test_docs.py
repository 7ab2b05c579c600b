"""The documentation says what is so: generated pages are fresh, links lead somewhere, and what
names a command or a file is held against the code."""

from __future__ import annotations

import os
import re
import runpy
import sys
from pathlib import Path

import polars as pl
import pytest

from docs import generate
from tests import programs
from workflow_lib.__main__ import COMMANDS as TRIPTYCH
from workflow_lib.archive.rebuild import Rebuilt, described
from workflow_lib.cells import expand_study
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import File, RunPaths
from workflow_lib.records.tables import TABLES
from workflow_lib.study import load_study

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")])
PAGES += [ROOT / name / "README.md" for name in ("config", "evidence", "results")]
COMMANDS = DOCS / "reference" / "commands.md"


def name(path):
    return str(path.relative_to(ROOT))


def code(text):
    """The words in backticks."""
    return re.findall(r"`([^`]+)`", text)


def rows(path, first_cell):
    """Cells of the table rows whose first cell matches."""
    lines = path.read_text(encoding="utf-8").splitlines()
    cells = [[c.strip() for c in line.strip("|").split(" |")] for line in lines if line[:1] == "|"]
    return [row for row in cells if re.match(first_cell, row[0])]


# ---------------------------------------------------------------------------------- generated pages


@pytest.mark.parametrize(
    ("path", "text"), [pytest.param(*page, id=page[0].name) for page in generate.pages().items()]
)
def test_a_generated_page_is_fresh(path, text):
    assert path.read_text(encoding="utf-8") == text, (
        f"{name(path)} is stale; make it again: python -m docs.generate"
    )


@pytest.mark.parametrize("page", ["configuration.md", "columns.md"])
def test_every_key_and_column_says_what_it_means(page):
    rows_found = rows(DOCS / "reference" / page, r"`\w+`")
    assert len(rows_found) > 50
    assert [row[0] for row in rows_found if row[-1] in ("", "None")] == []


def test_the_page_of_backends_has_answers_of_both_kinds():
    found = rows(DOCS / "reference" / "backends.md", r"(DP|PP|TP|EP)\b")
    for column in (1, 2):
        answers = {row[column] == "yes" for row in found}
        assert answers == {True, False}
    assert len(found) > 50


# ------------------------------------------------------------------------------- links


def anchors(path):
    """What a link into a page can name: its headings, as GitHub turns them into anchors."""
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    for target in targets:
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), f"{name(path)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(found), f"{name(path)}: no heading for {target}"


DATE = r"20\d\d-\d\d-\d\d|\d+ November 2026"


def _sections(path: Path) -> dict[str, str]:
    found = re.findall(
        r"^## (.*?)\n(.*?)(?=^## |\Z)", path.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    return dict(found)


@pytest.mark.parametrize("name", ["measurement", "operations", "placement", "traces", "training"])
def test_explanations_hold_no_dated_measurements(name):
    # They are in docs/results: those with records are made from these.
    text = (DOCS / "explanation" / f"{name}.md").read_text("utf-8")
    assert re.findall(rf".*(?:{DATE}).*", re.sub(r"\]\(\S+\)", "", text)) == []


@pytest.mark.parametrize("section", _sections(DOCS / "results" / "without-records.md"))
def test_figures_without_records_say_when_they_were_measured_and_what_measures_them_again(section):
    own = " ".join(_sections(DOCS / "results" / "without-records.md")[section].split())
    above = "As [above](#slurm-with-runs-in-flight)"
    assert above in own or re.search(DATE, own)
    assert above in own or re.search("again|makes others|predicts by", own)


def test_the_readme_links_every_how_to():
    linked = set(re.findall(r"\]\(docs/(how-to/[^)#]+)\)", (ROOT / "README.md").read_text("utf-8")))
    assert linked == {str(path.relative_to(DOCS)) for path in (DOCS / "how-to").glob("*.md")}


def test_the_map_names_every_page():
    index = DOCS / "index.md"
    linked = set(re.findall(r"\]\(([^)#]+)\)", index.read_text(encoding="utf-8")))
    assert linked == {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")} - {"index.md"}


# ------------------------------------------------------------------------------- commands


def test_the_targets_are_those_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):.*## ", makefile, flags=re.MULTILINE))
    assert {code(row[0])[0].removeprefix("make ") for row in rows(COMMANDS, "`make ")} == targets


def test_the_commands_are_those_of_triptych():
    listed = {code(row[0])[0]: code(row[1])[0] for row in rows(COMMANDS, "`triptych ")}
    modules = {name: each.module.removesuffix(".__main__") for name, each in TRIPTYCH.items()}
    assert listed == {
        f"triptych {name}": f"workflow_lib.{modules[name]} {each.word}".strip()
        for name, each in TRIPTYCH.items()
    }


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_a_target_that_is_named_exists(path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, flags=re.MULTILINE))
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"(?:`|^)make (?:PYTHON=\S+ )?([a-z-]+)", text, flags=re.MULTILINE)
    assert set(named) <= targets


@pytest.mark.parametrize("row", rows(COMMANDS, "`workflow_lib"), ids=lambda row: row[0].strip("`"))
@pytest.mark.filterwarnings("ignore:.* found in sys.modules:RuntimeWarning")
def test_a_command_takes_the_options_that_are_listed_and_no_others(row, monkeypatch, capsys):
    module, *subcommand = code(row[0])[0].split()
    monkeypatch.setattr(sys, "argv", [module, *subcommand, "--help"])
    with pytest.raises(SystemExit) as ended:  # as `python -m` does, without another Python
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code in (0, None)
    # As a word of its own, else the first line of a description may look like an option.
    taken = set(re.findall(r"(?<![\w-])--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert {option for option in code(row[1]) if option.startswith("--")} == taken


#: a command that the shell finds only with the environment's programs on the path
BARE = re.compile(
    r"(?:`|^)(?:[A-Z_]+=\S+ )*(snakemake --|python -m (?:workflow_lib|tests|pytest))", re.M
)
TO_PASTE = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "config" / "README.md"),
    *(DOCS / "tutorial.md", DOCS / "artifact.md", *sorted((DOCS / "how-to").glob("*.md"))),
]


@pytest.mark.parametrize("path", TO_PASTE, ids=name)
def test_a_page_says_how_the_shell_finds_its_commands_before_the_first(path):
    text = path.read_text(encoding="utf-8")
    bare = BARE.search(text)
    said = re.search(
        r'commands\.md#before-you-type-them|^export PATH="\$PWD/\.venv/bin', text, re.M
    )
    assert bare is None or (said is not None and said.start() < bare.start()), bare


def test_the_shell_finds_the_readmes_commands_in_a_clone():
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) > 5
    assert [each for each in lines if not re.match(r"make |\.venv/bin/snakemake ", each)] == []


def configuration(directory):
    """Makes ``directory`` a configuration of this checkout's models, platforms and data, without
    sweeps."""
    (directory / "sweeps").mkdir(parents=True)
    for kind in ("models", "platforms", "data"):
        (directory / kind).symlink_to(ROOT / "config" / kind)
    return directory


def test_the_sweep_in_the_how_to_is_a_sweep(tmp_path):
    text = (DOCS / "how-to" / "write-a-sweep.md").read_text(encoding="utf-8")
    sweep = re.search(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    assert sweep is not None
    config = configuration(tmp_path / "config")
    (config / "sweeps" / "layouts.yaml").write_text(sweep[1], encoding="utf-8")
    views = expand_study(load_study(config))
    assert set(views) == {"layouts-h200", "layouts-h100"}
    # By hand: 4 layouts × 2 micro-batches × 2 recomputations, and 2 × 2; on H100 less those with
    # micro-batch 2 and tp 8, of which there are 2 and 1.
    assert len(views["layouts-h200"].cells) == 20
    assert len(views["layouts-h100"].cells) == 17
    assert any(cell.feasible for cell in views["layouts-h200"].cells)


def test_a_trainer_and_its_sweep_in_the_how_to_have_cells_that_can_run(tmp_path):
    text = (DOCS / "how-to" / "train-with-another-trainer.md").read_text(encoding="utf-8")
    trainer, sweep, *_ = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    config = configuration(tmp_path / "config")
    (tmp_path / "train.py").write_text("", encoding="utf-8")
    (config / "trainers").mkdir(exist_ok=True)
    (config / "trainers" / "mine.yaml").write_text(trainer, encoding="utf-8")
    (config / "sweeps" / "mine.yaml").write_text(sweep, encoding="utf-8")
    cells = expand_study(load_study(config))["mine"].cells
    assert {planned.cell.training.trainer: planned.feasible for planned in cells} == {
        "native": True,
        "mine": True,
    }


def test_the_how_to_shows_what_a_rebuild_prints():
    """Without numbers, which are other ones with each file that is added."""
    rebuilt = Rebuilt(
        "demo", 5, 2, ("plan", "table"), different=(), missing=(), new=(), versions=()
    )
    printed = re.sub(r"\d+", "…", described(rebuilt, Path("rebuilt/demo")))
    assert printed in (DOCS / "how-to" / "archive-and-rebuild.md").read_text(encoding="utf-8")


# ------------------------------------------------------------------------------- the tutorial


def commands_of_the_tutorial(word):
    """Its commands, block by block, of which each has this word."""
    text = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    return [each for each in re.findall(r"```sh\n(.*?)```", text, flags=re.DOTALL) if word in each]


def typed(command, directory):
    """Types a command where ``directory`` is the clone, without its run of Snakemake."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    lines = [line for line in command.splitlines(keepends=True) if "snakemake --" not in line]
    environment |= {"PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"}
    done = programs.run(["bash", "-e", "-c", "".join(lines)], directory, environment)
    assert done.returncode == 0, f"{command}{done.stdout}{done.stderr}"
    return done.stdout


def test_the_sweep_of_the_tutorial_plans_as_the_page_shows(tmp_path):
    config = configuration(tmp_path / "config")
    (write,) = commands_of_the_tutorial("cat > config/sweeps/mine.yaml")
    (plan,) = commands_of_the_tutorial("workflow_lib.plan")
    typed(write, tmp_path)
    shown = typed(plan, tmp_path)
    assert re.search("4 cells: 4 .* 8 runs; 0 ", shown)
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    for line in shown.splitlines()[:6]:
        assert line in page

    def ids():
        (view,) = expand_study(load_study(config)).values()
        return {each.cell.id for each in view.cells}

    before = ids()
    (change,) = commands_of_the_tutorial("sed -i")
    typed(change, tmp_path)
    after = ids()
    # Micro-batches of 2, 4 and 8 of both models, of which Llama's are there already.
    assert len(after) == 6
    assert len(after & before) == 3
    (spoil,) = commands_of_the_tutorial("1.0e+30")
    typed(spoil, tmp_path)
    assert len(ids() - after) == 1


def test_the_tutorial_draws_a_figure_from_the_columns_that_tables_have(tmp_path):
    sweep = tmp_path / "results" / "sweeps" / "mine"
    sweep.mkdir(parents=True)
    values = {"micro_batch_size": [1, 1, 2, 2], "outcome": ["completed", "completed"] * 2}
    values |= {"completed": [2, 2, 2, 2], "step_time_s": [0.2] * 4}
    values |= {"tokens_per_s": [900.0, 1100.0, 2000.0, 2100.0]}
    for table in ("cells", "runs"):
        declared = {column.name for column in TABLES[table].columns}
        columns = {name: value for name, value in values.items() if name in declared}
        pl.DataFrame(columns).write_parquet(sweep / f"{table}.parquet")
    (table,) = commands_of_the_tutorial("cells.select")
    assert "tokens_per_s" in typed(table, tmp_path)
    (draw,) = commands_of_the_tutorial("my_figure.py")
    typed(draw, tmp_path)
    assert (tmp_path / "my_figure.svg").read_text(encoding="utf-8").count("<use") > 4
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    declared = {column.name for column in TABLES["runs"].columns}
    assert set(re.findall(r"`(loss_\w+|missing_\w+)`", page)) <= declared


# ------------------------------------------------------------------------------- files, outcomes


def test_every_file_of_a_run_is_listed():
    page = (DOCS / "reference" / "files.md").read_text(encoding="utf-8")
    paths = RunPaths(Path("run"))
    named = [
        path.name
        for attribute, value in vars(RunPaths).items()
        if isinstance(value, File) and (path := getattr(paths, attribute)).suffix
    ]
    named += ["rank<n>.json", "rank<n>.csv", "<node>.csv", "<node>-host.csv", "<node>-end.json"]
    assert len(named) > 10
    assert [file for file in named if file not in page] == []


def test_every_outcome_is_listed_as_what_it_is():
    listed = {
        outcome: row[2]
        for row in rows(DOCS / "reference" / "files.md", "`[a-z_]+`")
        for outcome in code(row[0])
        if len(row) == 4
    }
    assert listed.pop("not_run") == "–"
    assert listed == {o.value: "yes" if o.is_result else "no" for o in Outcome}
