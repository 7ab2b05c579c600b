"""Writes the reference pages that restate the code: ``python -m docs.generate``.

``configuration.md`` comes from the models in workflow_lib/config and their docstrings,
``columns.md`` from workflow_lib/records/columns.py, ``bounds.md`` from its bounds.py,
``backends.md`` from what workflow_lib/trainers/capabilities.py says of the combinations in
research/pages/backends.py; the JSON Schemas in ``config/schemas`` come from docs/schemas.py.
tests/test_docs.py fails when one is stale.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from docs import schemas
from research.pages import backends
from workflow_lib import config
from workflow_lib.records import bounds
from workflow_lib.records.cell_axes import IDENTITY
from workflow_lib.records.columns import Column
from workflow_lib.records.contract import STEPS
from workflow_lib.records.measures import MEASURES
from workflow_lib.records.reasons import SENTENCES
from workflow_lib.records.tables import CELLS, PLAN, TABLES
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
    SAMPLER_BLOCKS,
)
from workflow_lib.records.verdict_tables import CLAIMS, COMPARISON, SLOTS
from workflow_lib.report.figures import KINDS
from workflow_lib.study import load_study
from workflow_lib.trainers import capabilities

DIRECTORY = Path(__file__).parent / "reference"

CAPTION = Path(__file__).parents[1] / "workflow_lib" / "report" / "captions" / "figure.rst"

_FIGURES = """\
{# Made by `python -m docs.generate` from workflow_lib/report/figures. What a figure is about is the
   first word of its file's name. #}
{% set shown = SHOWN %}
{% set about, limits = shown.get(snakemake.wildcards.figure.split("-")[0], ("", "")) %}
A figure of the sweep **{{ snakemake.wildcards.sweep }}**. {{ about }}

{% if limits %}
**Limits.** {{ limits }} Energy and power come from the GPUs' own sensors, with a systematic error
that the sweep's page states.
{% endif %}

The same figure is a PDF beside it, ``{{ snakemake.wildcards.figure }}.pdf``, for a paper's column.
"""

_NOTICE = "<!-- Made by `python -m docs.generate`; edit {source} instead. -->"

_CONFIGURATION = """\
# Configuration

What the files under `config/` may hold. A name in one file (a model in a sweep, say) is the stem of
another. Names are made of letters, digits, dots and hyphens, because they name directories too. An
unknown key, a key given twice, a value outside of what is said here, or a name that is not there is
refused with the file, the key and what to write instead. Values are not converted: `"8"` is not
`8`.

`config/schemas` holds a JSON Schema for each kind of file. The first line of a file names its
schema, as in `# yaml-language-server: $schema=../schemas/sweep.json`. An editor with YAML's
language server (VS Code's YAML extension, for instance) then completes keys and marks mistakes.

`--config` on the command line changes what `config/config.yaml` says:
`snakemake --profile slurm_h200 --config results_directory=/scratch/study 'sweeps=[smoke]'`.
"""

_COLUMNS = """\
# Columns

This page lists the columns of every table and CSV file. An empty field of a CSV file is a reading
that failed or was not due. In a Parquet file a missing value is null. Where a section here says
that it has reasons, two columns more tell them, as JSON from a column's name: `missing_reasons` in
words, and `missing_codes` by a code, which stays the same when words change: [Reasons](reasons.md)
lists both. A missing value is never written as 0 or −1.
[Measurement](../explanation/measurement.md) explains how each number is measured.
[Files](files.md) says where the files are.
"""

#: columns that most tables have, which the page's head describes
_OF_NULLS = ("missing_reasons", "missing_codes")

_BOUNDS = """\
# Bounds

How large, deep and many what is read may be: configuration, results and archives may come from
somebody else, and be made to do harm. What is beyond a bound is refused in one sentence with the
name of the file. All lie far above what the workflow itself writes.

Parquet files are the exception: a damaged or hostile one can still end the process that reads it,
as polars asks for the memory that such a file names. An archive's tables are never read: they are
made anew from its raw files.
"""

#: a page's sections: the title, and the model whose keys it lists
_SECTIONS: tuple[tuple[str, type[config.Strict]], ...] = (
    ("Invocation", config.Invocation),
    ("Platform", config.Platform),
    ("Network", config.Network),
    ("Container", config.Container),
    ("Model", config.ModelSpec),
    ("Rotary scaling", config.RotaryScaling),
    ("Published", config.Published),
    ("Data", config.DataSpec),
    ("Trainer", config.TrainerSpec),
    ("Sweep", config.SweepSpec),
    ("Protocol", config.Protocol),
    ("Cool-down", config.CoolDown),
    ("Training options", config.TrainingAxes),
    ("Entry of the matrix", config.MatrixEntry),
    ("Prediction", config.Prediction),
    ("Exclusion", config.Exclusion),
    ("Ledger", config.Ledger),
    ("Claim", config.Claim),
    ("Test of a claim", config.ClaimTest),
    ("Meters", config.Meters),
    ("Meter", config.Meter),
)

_TABLES = (
    ("telemetry/&lt;node&gt;.csv", "One row a tick and GPU.", GPU_SAMPLES),
    (
        "telemetry/&lt;node&gt;-counters.csv",
        "One row a second and GPU, where anything was due. A GPU's first and last row hold all "
        "that it has.",
        GPU_COUNTERS,
    ),
    (
        "telemetry/&lt;node&gt;-power.csv",
        "One row a sample that the driver itself took, where it keeps any.",
        POWER_SAMPLES,
    ),
    ("telemetry/&lt;node&gt;-events.csv", "One row an event.", GPU_EVENTS),
    (
        "telemetry/&lt;node&gt;-blocks.csv",
        "One row a block, in which the sampler keeps one rate; only where rates alternate.",
        SAMPLER_BLOCKS,
    ),
    ("telemetry/&lt;node&gt;-host.csv", "One row a second.", HOST_SAMPLES),
    ("steps/rank&lt;n&gt;.csv", "One row a step and rank.", STEPS),
    ("plan.parquet", "One row a cell that the sweep asks for.", PLAN),
    *((f"{name}.parquet", kind.rows, kind.columns) for name, kind in TABLES.items()),
    (
        "comparison.parquet",
        "One row a pair of cells and measure, of "
        "[two sweeps that are compared](../how-to/compare-two-sweeps.md). A pair that did not "
        "complete on both sides, and a cell without a partner, has one row without a measure.",
        COMPARISON,
    ),
    (
        "claims.parquet",
        "One row a contrast by which a claim is judged. A test without cells, and a claim without "
        "a test, has one row that says so.",
        CLAIMS,
    ),
    (
        "slots.parquet",
        "One row a GPU, over the completed runs of a sweep in which GPUs changed stages.",
        SLOTS,
    ),
)


def pages() -> dict[Path, str]:
    """Every generated page: its path and its text."""
    return {
        DIRECTORY / "configuration.md": _configuration(),
        DIRECTORY / "columns.md": _columns(),
        DIRECTORY / "backends.md": _backends(),
        DIRECTORY / "reasons.md": _reasons(),
        DIRECTORY / "bounds.md": _bounds_page(),
        CAPTION: _caption(),
        **schemas.pages(),
    }


# ----------------------------------------------------------------------------------- configuration


def _configuration() -> str:
    parts = [_CONFIGURATION]
    inherited = set(config.TrainingAxes.model_fields)
    for title, model in _SECTIONS:
        schema = model.model_json_schema()
        parts += [f"## {title}", _described(model)]
        own = schema["properties"]
        if model is not config.TrainingAxes and inherited <= own.keys():
            own = {name: field for name, field in own.items() if name not in inherited}
            parts.append(
                f"Besides these keys, all [training options]({_anchor('Training options')})."
            )
        required = schema.get("required", [])
        # Not the schema's description, which a field that refers to another model lacks.
        rows = [
            (
                f"`{name}`",
                _accepts(field),
                _default(field, name in required),
                str(model.model_fields[name].description),
            )
            for name, field in own.items()
        ]
        parts.append(_table(("key", "takes", "default", "meaning"), rows))
    return _page("workflow_lib/config", *parts)


def _page(source: str, *parts: str) -> str:
    """A page of parts, and of what says where it is from."""
    return "\n\n".join(part.rstrip() for part in (_NOTICE.format(source=source), *parts)) + "\n"


def _described(model: type[config.Strict]) -> str:
    text = inspect.cleandoc(model.__doc__ or "").replace("``", "`")
    return text.replace("See records.Training for what each means.", "").strip()


def _anchor(title: str) -> str:
    return "#" + title.lower().replace(" ", "-")


def _accepts(schema: Mapping[str, Any]) -> str:
    """What a key takes, in words, from its JSON schema."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        title = next(title for title, model in _SECTIONS if model.__name__ == name)
        return f"[{title}]({_anchor(title)})"
    if "anyOf" in schema:
        return " or ".join(_alternatives(schema["anyOf"]))
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = str(schema["type"])
    if kind == "array":
        return f"list of {_accepts(schema['items'])}"
    if kind == "object":
        of_values = schema.get("additionalProperties") or {}
        several = any("items" in each for each in of_values.get("anyOf", ()))
        return "names and values" if several else "names and texts"
    if kind == "string" and "pattern" in schema:
        # One that only keeps control characters out is no pattern to a reader.
        return "text" if "x00" in schema["pattern"] else f"text: `{schema['pattern']}`"
    words = {"string": "text", "integer": "integer", "number": "number", "boolean": "true, false"}
    return words.get(kind, kind) + _bounds(schema)


def _alternatives(schemas: Sequence[Mapping[str, Any]]) -> list[str]:
    """What each branch takes: a value "or a list" of the same is an axis."""
    texts = []
    for schema in schemas:
        text = _accepts(schema)
        if text.removeprefix("list of ") in texts and text.startswith("list of "):
            text = "a list"
        texts.append(text)
    return texts


def _bounds(schema: Mapping[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if low is not None and high is not None:
        return f" {low:g} to {high:g}"
    if low is not None:
        return f" ≥ {low:g}"
    if above is not None:
        ends = ((" ≤", high), (" <", below))
        return f" > {above:g}" + "".join(
            f",{sign} {end:g}" for sign, end in ends if end is not None
        )
    return ""


def _default(schema: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    value = schema.get("default")
    if value is None:
        return "null"
    if value in ([], {}):
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# ------------------------------------------------------------------------------------------ bounds


def _bounds_page() -> str:
    rows = [
        (f"`{name}`", bound.what, f"{bound.most:,}".replace(",", " "), bound.unit)
        for name, bound in bounds.all_bounds().items()
    ]
    table = _table(("bound", "of what", "most", "unit"), rows)
    return _page("workflow_lib/records/bounds.py", _BOUNDS, table)


# ----------------------------------------------------------------------------------------- columns


def _columns() -> str:
    identity = "What tells one cell from another; several tables begin with these."
    parts = [_COLUMNS, "## Identity", identity, _column_table(IDENTITY)]
    for title, sentence, columns in _TABLES:
        shown: Sequence[Column] = columns
        if columns[: len(IDENTITY)] == IDENTITY:
            shown = columns[len(IDENTITY) :]
            sentence += " Begins with the [identity](#identity) columns."
        if columns is CELLS:
            shown = _without_measures(shown)
            sentence += (
                " Ends with every measure of [runs.parquet](#runsparquet), from `counted_steps` "
                "on, three times, as numbers: `<measure>` is the median over the cell's completed "
                "runs, `<measure>_low` and `<measure>_high` the lowest and highest. Null unless "
                "every completed run has it."
            )
        if {column.name for column in columns} & {*_OF_NULLS}:
            sentence += " It has reasons."
        parts += [f"## {title}", sentence, _column_table(shown)]
    return _page("workflow_lib/records", *parts)


_REASONS = """\
# Reasons

Why a value of a table is null. `missing_codes` has the code of each null column, and
`missing_reasons` the sentence with its values in place. Codes are stable; sentences may change.
Where a sentence is only `{why}`, the text comes from a driver, a clock, a verdict
or the error of a damaged file. `unclassified` is a text of an earlier version.

"""


def _reasons() -> str:
    rows = "".join(f"| `{code}` | {text} |\n" for code, text in sorted(SENTENCES.items()))
    table = f"| code | sentence |\n|---|---|\n{rows}"
    return _page("workflow_lib/records/reasons.py", _REASONS, table)


def _without_measures(columns: Sequence[Column]) -> Sequence[Column]:
    """The columns of a cell that are no measure. Raises ValueError where the rest is not thrice."""
    names = [column.name for column in columns]
    thrice = [name + end for name in MEASURES for end in ("", "_low", "_high")]
    own = names[: len(names) - len(thrice)]
    if names != own + thrice:
        raise ValueError("CELLS does not end with each measure thrice: describe it in _columns()")
    return columns[: len(own)]


def _column_table(columns: Iterable[Column]) -> str:
    rows = [
        (f"`{c.name}`", ", ".join(filter(None, (c.type.__name__, c.unit))), c.description)
        for c in columns
        if c.name not in _OF_NULLS
    ]
    return _table(("column", "type, unit", "meaning"), rows)


# ---------------------------------------------------------------------------------------- backends


def _backends() -> str:
    study = load_study(schemas.CONFIG)
    parts = [backends.TITLE, "## Combinations", backends.COMBINATIONS]
    for title, rows in backends.answers(study):
        parts += [f"### {title}", *_answered(("combination", *capabilities.BACKENDS), rows, 1)]
    parts += ["## The study's cells", backends.SWEEP]
    for platform, rows in backends.sweep_rows(study):
        parts += [f"### {platform}", *_answered(("model", "layout", "ZeRO", "runs on"), rows, 3)]
    source = "workflow_lib/trainers/capabilities.py or research/pages/backends.py"
    return _page(source, *parts)


def _answered(heading: Sequence[str], rows: Iterable[Sequence[str]], after: int) -> Iterator[str]:
    """A table whose columns ``after`` so many say yes, a backend, or why not; and each reason once,
    in a list below it."""
    numbers: dict[str, int] = {}

    def short(answer: str) -> str:
        if answer in ("yes", *capabilities.BACKENDS):
            return answer
        return f"no: {numbers.setdefault(answer, len(numbers) + 1)}"

    yield _table(heading, [(*row[:after], *map(short, row[after:])) for row in rows])
    if numbers:
        yield "\n".join(f"{number}. {_one_line(why)}" for why, number in numbers.items())


# --------------------------------------------------------------------------- captions of figures


def _caption() -> str:
    """The caption of every figure in Snakemake's own report, which chooses by the file's name."""
    shown = {kind.stem: (kind.about, kind.limits) for kind in KINDS}
    return _FIGURES.replace("SHOWN", json.dumps(shown, ensure_ascii=False, indent=2))


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(
        "| " + " | ".join(_one_line(cell) for cell in line).strip() + " |" for line in lines
    )


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|").replace("<", "&lt;")


def main() -> None:
    """Write every generated page."""
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(Path(__file__).parents[1]))


if __name__ == "__main__":
    main()
