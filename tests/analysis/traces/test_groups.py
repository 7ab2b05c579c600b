"""Process groups, as traces describe them: their ranks, the axis of the layout, the fabric."""

import pytest

from workflow_lib.analysis.traces.groups import axis_of, fabric_of, listed_ranks
from workflow_lib.records.degrees import Degrees, group_members


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("[0, 1]", 2, (0, 1)),
        ("[5]", 1, (5,)),
        ("[0, 2, 4, ...]", 64, tuple(range(0, 128, 2))),
        ("[0, 2, 5, ...]", 64, None),
        ("[0, 2, ...]", None, None),
        ("", 2, None),
        ("[a]", 1, None),
        (None, 2, None),
    ],
)
def test_long_lists_of_ranks_are_filled_in_only_where_that_is_sure(text, size, ranks):
    assert listed_ranks(text, size) == ranks


LAYOUT, EXPERTS = Degrees(tp=2, pp=2, dp=4, ep=2), Degrees(dp=4, ep=4)
SEQUENCES = Degrees(tp=2, cp=2, dp=2)


@pytest.mark.parametrize(
    ("layout", "ranks", "description", "kind", "axis"),
    [
        (LAYOUT, (0, 1), None, "all_reduce", "TP"),
        (LAYOUT, (0, 8), None, "send_receive", "PP"),
        (LAYOUT, (0, 2, 4, 6), None, "all_reduce", "DP"),
        (LAYOUT, (0, 2), None, "all_to_all", "EP"),
        # Replicas that hold copies of the same experts.
        (LAYOUT, (0, 4), None, "all_reduce", "DP"),
        (LAYOUT, (0, 1, 8, 9), None, "all_reduce", "TP+PP"),
        (LAYOUT, range(16), None, "all_reduce", "TP+DP+PP"),
        (LAYOUT, (0,), None, "all_reduce", None),
        # Ranks that the layout does not have are told by the group's description.
        (LAYOUT, (0, 16), "mesh_pp", "send_receive", "PP"),
        (LAYOUT, (0, 16), None, "send_receive", None),
        # Experts over all replicas are told by what they exchange.
        (EXPERTS, range(4), None, "all_to_all", "EP"),
        (EXPERTS, range(4), None, "all_reduce", "DP"),
        (EXPERTS, range(4), "mesh_ep", "all_reduce", "EP"),
        # The ranks of a sequence; weights are gathered over all that hold the same.
        (SEQUENCES, (0, 2), None, "all_gather", "CP"),
        (SEQUENCES, (0, 2, 4, 6), None, "all_gather", "CP+DP"),
        (None, (0, 2), "cp", "all_gather", "CP"),
        *(
            (None, (0, 1), description, "all_reduce", axis)
            for description, axis in (
                ("mesh_tp", "TP"),
                ("dp_shard", "DP"),
                ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"),
                ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "TP+CP"),
                ("DATA_PARALLEL_GROUP_WITH_CP", "CP+DP"),
                ("EXPERT_MODEL_PARALLEL_GROUP", "EP"),
                ("EXPERT_DATA_PARALLEL_GROUP", "DP"),
                ("TENSOR_AND_EXPERT_PARALLEL_GROUP", "TP+EP"),
                ("metadata", None),
                ("default_pg", None),
            )
        ),
    ],
)
def test_ranks_name_the_axis_of_the_layout(layout, ranks, description, kind, axis):
    assert axis_of(ranks, description, kind, 0, layout) == axis


def test_a_group_on_one_node_stays_inside_of_it():
    assert fabric_of((0, 7), 8) == "intra_node"
    assert fabric_of((7, 8), 8) == "inter_node"
    assert fabric_of((0, 1), None) is None


@pytest.mark.parametrize("axes", ["TP", "PP", "DP", "EP", "TP+PP", "TP+DP", "DP+PP", "TP+DP+PP"])
def test_every_rank_knows_the_groups_that_training_makes(axes):
    for members in group_members(LAYOUT, *axes.lower().split("+")):
        for rank in members:
            assert axis_of(members, None, "all_reduce", rank, LAYOUT) == axes
