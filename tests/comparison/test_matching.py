"""Which cells correspond."""

import pytest

from tests import shipped
from tests.report.full_matrix import cell_row
from workflow_lib.comparison.matching import best_pairs, check_matched, layout_pairs, named_pairs
from workflow_lib.records.cell_axes import identity
from workflow_lib.records.reading import RecordError

from .sides import known, measured


def names(pairs):
    """Kind of match and both layouts."""
    return [
        (pair.match, *(cell["parallelism"] if cell else None for cell in (pair.a, pair.b)))
        for pair in pairs
    ]


def cells(*identities):
    return [cell_row(each) for each in identities]


def test_the_studys_layouts_on_64_h100_have_pipelines_twice_as_deep_or_more_replicas():
    views = shipped.sweeps()
    sides = [
        [cell_row(identity(planned.cell)) for planned in views[f"parallelism-{platform}"].cells]
        for platform in ("h200", "h100")
    ]
    pairs = layout_pairs(*sides)
    found = [(pair.one["model"], *each) for pair, each in zip(pairs, names(pairs), strict=True)]
    # By hand, from the study's table of cells: each of H200 has a partner.
    stages, replicas = "other_stages", "other_replicas"
    assert ("gpt3-175b", stages, "tp2-pp16-dp1", "tp2-pp32-dp1") in found
    assert ("gpt3-175b", replicas, "tp8-pp1-dp4", "tp8-pp1-dp8") in found
    assert ("llama3-70b", stages, "tp4-pp4-dp2", "tp4-pp8-dp2") in found
    assert ("mixtral-8x7b", stages, "tp1-pp1-dp32-ep8", "tp1-pp2-dp32-ep8") in found
    assert ("mixtral-8x7b", stages, "tp2-pp1-dp16-ep4", "tp2-pp2-dp16-ep4") in found
    assert ("mixtral-8x22b", stages, "tp1-pp4-dp8-ep8", "tp1-pp8-dp8-ep8") in found
    assert [each for each in found if each[1] == "unmatched" and each[2]] == []
    assert ("mixtral-8x22b", "unmatched", None, "tp8-pp1-dp8-ep8") in found


def test_the_same_layout_comes_before_one_with_other_replicas():
    a = cells(known("h200", 2, 2, 4), known("h200", 2, 2, 2))
    b = cells(known("h100", 2, 2, 4), known("h100", 2, 2, 8))
    assert names(layout_pairs(a, b)) == [
        ("same_layout", "tp2-pp2-dp4", "tp2-pp2-dp4"),
        ("other_replicas", "tp2-pp2-dp2", "tp2-pp2-dp8"),
    ]


def test_options_must_be_equal():
    a = cells(known(micro_batch=1), known(micro_batch=4, recomputation="none"))
    b = cells(known("h100", micro_batch=2), known("h100", micro_batch=4))
    assert [match for match, *_ in names(layout_pairs(a, b))] == ["unmatched"] * 4


def test_a_date_is_matched_by_the_cells_id_before_by_its_columns():
    one, other = (
        known() | {"cell": f"h200/llama3-70b/x_{end}"} for end in ("aaaaaaaa", "bbbbbbbb")
    )
    [pair, *rest] = layout_pairs(cells(one), cells(one, other))
    assert (pair.match, pair.a, pair.b) == ("same_layout", *cells(one, one))
    assert [each.match for each in rest] == ["unmatched"]


def test_of_cells_that_are_alike_none_is_taken_at_random():
    alike = [known("h100") | {"cell": f"h100/llama3-70b/x_{end}"} for end in "ab"]
    pairs = layout_pairs(cells(known()), cells(*alike))
    assert [pair.match for pair in pairs] == ["unmatched"] * 3
    assert {pair.reason.count("where they ran") for pair in pairs} == {1}


def test_how_layers_are_divided_is_part_of_a_layout():
    cut = known("h100") | {"stage_layers": "[3, 2, 2]", "parallelism": "tp2-pp16-dp1-l3.2x15"}
    pairs = layout_pairs(cells(known()), cells(cut))
    assert [pair.match for pair in pairs] == ["unmatched"] * 2
    assert all("differs in stage_layers" in pair.reason for pair in pairs)


def test_the_best_are_the_fastest_the_most_efficient_and_the_coolest():
    slow, _ = measured(known(), tokens_per_s=[1.0], tokens_per_j=[9.0], temperature_mean_c=[50.0])
    fast, _ = measured(
        known(tp=4, pp=8), tokens_per_s=[2.0], tokens_per_j=[8.0], temperature_mean_c=[60.0]
    )
    other, _ = measured(
        known("h100"), tokens_per_s=[3.0], tokens_per_j=[7.0], temperature_mean_c=[55.0]
    )
    found = {pair.measure.name: pair.a for pair in best_pairs([slow, fast], [other])}
    assert found == {"tokens_per_s": fast, "tokens_per_j": slow, "temperature_mean_c": slow}
    assert best_pairs([slow], [measured(known(workload="lora"), tokens_per_s=[3.0])[0]]) == []


def test_where_nothing_corresponds_it_is_said_what_differs():
    a, b = cells(known(model="gpt3-175b")), cells(known(model="llama3-70b", micro_batch=4))
    pairs = layout_pairs(a, b)
    with pytest.raises(RecordError) as error:
        check_matched(pairs, a, b)
    for told in ("gpt3-175b in A", "llama3-70b in B", "1 in A", "4 in B"):
        assert told in str(error.value)


def test_a_pair_can_be_named_by_parts_of_ids():
    a, b = cells(known(), known(tp=4, pp=8)), cells(known("h100", 8, 8))
    [pair] = named_pairs(a, b, [("tp4-", "h100")])
    assert (pair.match, pair.a, pair.b) == ("named", a[1], b[0])
    with pytest.raises(RecordError, match="2 cells of A"):
        named_pairs(a, b, [("llama3", "h100")])
    with pytest.raises(RecordError, match="0 cells of B"):
        named_pairs(a, b, [("tp4-", "mi250")])
