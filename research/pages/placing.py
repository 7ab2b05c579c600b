"""docs/results/placement.md: what goes with GPUs, a placement that was advised, and the runs of it.

The runs of one sweep of the evidence advise, by `make slots` and `make place`; those of another
tried the advice.
"""

from __future__ import annotations

from pathlib import Path

from research.pages import findings
from research.pages.tables import document, table
from workflow_lib.placement import readings, slots, sweep, text
from workflow_lib.placement.advice import advise
from workflow_lib.placement.sweep import record
from workflow_lib.records.paths import SweepPaths
from workflow_lib.records.tables import PLAN
from workflow_lib.report.figures.tables import read_tables
from workflow_lib.report.predictions import predictions
from workflow_lib.study import load_study
from workflow_lib.table_files import read_table

NAME = "placement.md"
#: the sweep that advises, and the one that has the cell as it was and as it was placed
ADVISES, TRIES = "evidence-slots-x2", "evidence-stages-x2"


def page(rebuilt: Path) -> str:
    """The page of the two sweeps. The cell is the one that both have."""
    advises, tries = (findings.directory_of(rebuilt, name) for name in (ADVISES, TRIES))
    measured = readings.read(advises)
    plan = read_table(SweepPaths(tries).plan, PLAN).to_dicts()
    known = {run.cell.id for run in measured.runs}
    (cell,) = (row["cell"] for row in plan if row["cell"] in known)
    found = slots.characterise(measured, slots.BEHIND)
    advice = advise(measured, cell, ())
    study = load_study(findings.CHECKOUT / "config")
    placed = sweep.placed_cell(study, advice.cell, sweep.described(study, advice))
    made = record(advice, placed.cell.id, advises.name)
    predicted = {
        f"predicted_{name}{end}": value
        for name, gain in (("time_gain", made.time_gain), ("energy_gain", made.energy_gain))
        for end, value in (("", gain.estimate), ("_low", gain.low), ("_high", gain.high))
    }
    for row in plan:
        if row["cell"] != cell:
            row |= predicted | {"predicted_against": cell}
    lines = predictions(plan, read_tables(tries), {row["cell"]: row["cell"] for row in plan})
    slots_of = text.slots_table(found)
    return document(
        findings.NOTICE,
        "# Does a placement that is advised hold where it is tried? Two H200",
        f"[{len(measured.runs)} runs](evidence-slots-x2.md) of Llama 3 8B as a pipeline of two "
        "stages, in both orders of the GPUs, advise by `make slots` and `make place`. "
        f"[{len(read_tables(tries).runs)} more runs](evidence-stages-x2.md) on the same GPUs have "
        "the cell as it was and with its layers divided otherwise. The model of a step was changed "
        "after these runs, so they are no independent test of it: [Placement]"
        "(../explanation/placement.md#what-was-measured).",
        "## What goes with the GPUs",
        table(slots_of[0], (line.values() for line in slots_of)),
        " ".join(text.slots_sentences(found, simulated=False)),
        "## What is advised",
        " ".join(text.advice_sentences(advice)),
        "## What was predicted, and measured",
        "In brackets are intervals: 90 % of what was predicted, 95 % of what was measured.",
        table(
            ("gain in", "predicted", "measured", "verdict"),
            ([line[key] for key in ("what", "predicted", "measured", "verdict")] for line in lines),
        ),
    )
