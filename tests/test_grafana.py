"""The Grafana dashboard asks for metrics and labels that `triptych metrics` writes."""

import json
import re

import pytest

from tests.conftest import ROOT
from tests.live.running import write
from tests.test_metrics import parsed, text_of
from workflow_lib.metrics import FAMILIES

BOARD = json.loads((ROOT / "docs" / "grafana" / "triptych.json").read_text(encoding="utf-8"))
QUERIES = [
    *(target["expr"] for panel in BOARD["panels"] for target in panel["targets"]),
    *(each["definition"] for each in BOARD["templating"]["list"] if each["type"] == "query"),
]
WRITTEN = {family.name + "_total" * (family.kind == "counter") for family in FAMILIES}


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_asks_for_what_is_written(query, tmp_path):
    write(tmp_path)
    asked = set(re.findall(r"triptych_\w+", query))
    assert asked
    assert asked <= WRITTEN
    # Labels that it groups by, chooses by or lists are those of each metric.
    groups = re.findall(r"by \(([^)]*)\)", query) + re.findall(r"label_values\(\w+, (\w+)\)", query)
    labels = {each.strip() for group in groups for each in group.split(",")}
    labels |= set(re.findall(r"[{,](\w+)=~", query))
    for name, have in parsed(text_of(tmp_path)):
        if name in asked:
            assert labels <= {label for label, _ in have}, name


def test_a_legend_names_labels_that_the_query_keeps():
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            kept = re.findall(r"by \(([^)]*)\)", target["expr"])
            named = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            labels = set(re.split(r",\s*", kept[0])) if kept else {"cell", "run"}
            assert named <= labels, panel["title"]


def test_panels_do_not_overlap_and_each_has_a_number_of_its_own():
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    covered = [
        (x, y)
        for at in places
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(covered) == len(set(covered))
    assert max(x for x, _ in covered) < 24
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
