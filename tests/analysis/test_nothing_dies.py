"""Whatever a sampler records reaches the page of the run, or the registry says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from workflow_lib.analysis.reduce import reduce_run
from workflow_lib.records.measures import MEASURES, NOT_MEASURES, File, Reading
from workflow_lib.records.telemetry_columns import GPU_COUNTERS, GPU_SAMPLES, HOST_SAMPLES
from workflow_lib.report.cell_pages import Reasons, figures_of_run

from .synthetic_run import NO_HEAT, Run

FILES: dict[File, Any] = {"gpu": GPU_SAMPLES, "counters": GPU_COUNTERS, "host": HOST_SAMPLES}
#: what says when and of what a reading is
KEYS = {"unix_time_s", "gpu"}
READINGS = [
    (file, column.name)
    for file, columns in FILES.items()
    for column in columns
    if column.name not in KEYS and (file, column.name) not in NOT_MEASURES
]
THERMAL = 0x20  # NVML's software thermal slowdown


def shown(run: Run, directory: Path) -> dict[str, Any]:
    """What the page says of the run, by measure."""
    paths = run.write(directory)
    reduce_run(paths.directory)
    row = json.loads(paths.summary.read_text(encoding="utf-8"))["run"]
    return dict(zip(MEASURES, figures_of_run(row, Reasons(str)), strict=True))


@pytest.mark.parametrize(("file", "column"), READINGS, ids=lambda name: str(name))
def test_a_reading_reaches_the_page_of_its_run(file, column, tmp_path):
    def plain(fields: dict[str, Any]) -> dict[str, Any]:
        # Events count where the driver has no counters of them.
        hidden = "throttle_" if column == "event_reasons" else "-"
        if column == "throttle_power_cap_s":
            fields = {**fields, **NO_HEAT}
        return {name: value for name, value in fields.items() if not name.startswith(hidden)}

    def edited(fields: dict[str, Any]) -> dict[str, Any]:
        fields = plain(fields)
        value = fields[column]
        if column == "event_reasons":
            return {**fields, column: value | THERMAL}
        # Half as much again, and one more for each second: what was 0 counts up.
        elapsed_s = round(fields["unix_time_s"]) % 1000
        more = min(1.5 * value + elapsed_s, named[column].range.most)
        return {**fields, column: type(value)(more)}

    named = {each.name: each for each in FILES[file]}
    changed = Run(edit_host=edited) if file == "host" else Run(edit=edited)
    before = shown(Run(edit=plain), tmp_path / "before" / "run1")
    after = shown(changed, tmp_path / "after" / "run1")
    assert [measure for measure in MEASURES if after[measure] != before[measure]]


def test_what_reaches_no_page_is_a_column_and_the_registry_says_why():
    assert set(FILES) == set(get_args(File))
    for (file, column), reason in NOT_MEASURES.items():
        assert column in {each.name for each in FILES[file]}
        assert reason


@pytest.mark.parametrize(
    ("column", "statistic"), [("energy_j", "mean"), ("memory_temperature_c", "increase")]
)
def test_a_counter_has_an_increase_and_no_mean(column, statistic):
    with pytest.raises(ValueError, match=column):
        Reading("counters", column, statistic)
