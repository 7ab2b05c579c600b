import pytest

from workflow_lib.records.degrees import Coordinates, Degrees, coordinates, group_members

EIGHT = Degrees(tp=2, pp=2, dp=2)


def test_tensor_parallel_ranks_are_neighbours_and_stages_are_far_apart():
    assert coordinates(1, EIGHT) == Coordinates(tp=1, pp=0, dp=0, ep=0)
    assert coordinates(2, EIGHT) == Coordinates(tp=0, pp=0, dp=1, ep=0)
    assert coordinates(4, EIGHT) == Coordinates(tp=0, pp=1, dp=0, ep=0)


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        (("tp",), [[0, 1], [2, 3], [4, 5], [6, 7]]),
        (("dp",), [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (("pp",), [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (("tp", "pp"), [[0, 1, 4, 5], [2, 3, 6, 7]]),
    ],
)
def test_groups_hold_the_ranks_that_differ_in_their_axes_only(axes, expected):
    assert group_members(EIGHT, *axes) == expected


def test_the_ranks_of_a_sequence_lie_between_tensor_parallel_ones_and_replicas():
    degrees = Degrees(tp=2, cp=2, dp=2)

    assert (degrees.world_size, degrees.copies) == (8, 4)
    assert coordinates(6, degrees) == Coordinates(tp=0, pp=0, dp=1, ep=0, cp=1)
    assert group_members(degrees, "cp") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert group_members(degrees, "dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]
    # Those that hold the same weights.
    assert group_members(degrees, "cp", "dp") == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_experts_are_spread_over_neighbouring_replicas_and_copied_over_the_rest():
    degrees = Degrees(tp=2, dp=4, ep=2)

    assert group_members(degrees, "ep") == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert group_members(degrees, "expert_dp") == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_an_interleaved_layout_has_the_ranks_and_groups_of_a_plain_one():
    chunks = Degrees(tp=2, pp=2, dp=2, virtual_stages=2)

    assert chunks.world_size == 8
    assert group_members(chunks, "pp") == group_members(EIGHT, "pp")
    assert coordinates(4, chunks) == coordinates(4, EIGHT)


def test_a_rank_outside_of_the_layout_is_refused():
    with pytest.raises(ValueError, match=r"rank 8 .* 8 ranks"):
        coordinates(8, EIGHT)
