"""Which runs are of one session, by hand."""

from workflow_lib.intervals.within_hosts import LONGEST_PAUSE_S, sessions

HOUR = 3600.0


def test_runs_on_one_set_of_gpus_without_a_long_pause_are_a_session():
    # On x: a b, seven hours, b a; between them on y: a b b.
    found = sessions([0, 9 * HOUR, 2 * HOUR], [HOUR, 8 * HOUR, 3 * HOUR, 4 * HOUR], "xxy", "xxyy")
    assert (found.of_a, found.of_b) == ((0, 2, 1), (0, 2, 1, 1))
    assert (found.places_a, found.places_b) == ((0, 1, 0), (1, 0, 1, 2))
    assert (found.count, found.left_out, found.fewest_runs) == (3, 0, 3)


def test_runs_elsewhere_do_not_end_a_session():
    found = sessions([0.0, 10.0], [5.0, 15.0], "xy", "xx")
    assert (found.of_a, found.of_b) == ((0, None), (0, 0))


def test_the_longest_pause_is_from_one_start_to_the_next():
    assert sessions([0.0], [LONGEST_PAUSE_S], "x", "x").count == 1
    assert sessions([0.0], [LONGEST_PAUSE_S + 1], "x", "x").count == 0
    # Twelve hours in all, with a run in their middle.
    assert sessions([0.0, LONGEST_PAUSE_S], [2 * LONGEST_PAUSE_S], "xx", "x").count == 1


def test_runs_without_one_of_the_other_side_in_their_session_do_not_count():
    found = sessions([0.0, 1.0, 2.0], [3.0, 4.0], "xyz", "xw")
    assert (found.of_a, found.of_b) == ((0, None, None), (0, None))
    assert (found.count, found.left_out, found.fewest_runs) == (1, 3, 1)


def test_whether_one_side_came_first_in_every_session():
    def first(a, b):
        return sessions(a, b, "xy", "xy").is_one_side_first

    assert first([0.0, 10.0], [1.0, 11.0])
    assert first([1.0, 11.0], [0.0, 10.0])
    assert not first([0.0, 11.0], [1.0, 10.0])
    # On y it is A, B, A.
    mixed = sessions([0.0, 10.0, 12.0], [1.0, 11.0], "xyy", "xy")
    assert not mixed.is_one_side_first
