"""Threads submit one after the other, and ever more rarely while Slurm refuses."""

from __future__ import annotations

import contextlib
import threading

import pytest

from workflow_lib.launch import interruption
from workflow_lib.launch.interruption import InterruptedRunError
from workflow_lib.launch.schedulers import slurm
from workflow_lib.launch.schedulers.refusals import NotNowError
from workflow_lib.launch.schedulers.slurm import Slurm


@pytest.fixture(autouse=True)
def waits(monkeypatch):
    """How long each submission was put off because Slurm had refused one, in s."""
    found: list[float] = []

    def pause(seconds: float) -> None:
        interruption.check()
        found.append(seconds)

    monkeypatch.setattr(slurm.interruption, "pause", pause)
    monkeypatch.setattr(slurm, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(slurm, "SETTLE_S", 0.0)
    monkeypatch.setattr(interruption, "_came", 0)
    return found


def submit(scheduler: Slurm, refused: bool = False) -> None:
    with contextlib.suppress(NotNowError), scheduler.submission_lock():
        if refused:
            raise NotNowError("not now", may_have_been_submitted=False)


def test_while_slurm_refuses_it_is_asked_ever_more_rarely_whoever_it_is(waits):
    scheduler = Slurm()
    for _ in range(8):
        submit(scheduler, refused=True)
    assert waits == pytest.approx([0, 10, 20, 40, 80, 160, 300, 300], abs=2)


def test_once_it_takes_a_job_nobody_waits_any_more(waits):
    scheduler = Slurm()
    for refused in (True, True, False):
        submit(scheduler, refused)
    waits.clear()
    # Pauses take no time here, so the clock has not come to the end of the last one.
    scheduler._again_at_s = 0.0
    submit(scheduler, refused=True)
    submit(scheduler)
    assert waits == pytest.approx([0, 10], abs=2)


def test_ctrl_c_ends_the_wait_for_the_lock():
    scheduler = Slurm()
    with scheduler.submission_lock():
        interruption.note_sigint()
        with pytest.raises(InterruptedRunError):
            submit(scheduler)
    with pytest.raises(InterruptedRunError):
        submit(scheduler)


def waiting(scheduler: Slurm, count: int) -> None:
    """Returns when so many threads wait for their turn."""
    with scheduler._lock._changed:
        while len(scheduler._lock._waiting) < count:
            scheduler._lock._changed.wait(0.01)


def test_of_those_that_wait_the_earliest_run_comes_next():
    scheduler = Slurm()
    order: list[int] = []

    def run(place: int) -> None:
        with scheduler.submission_lock(place):
            order.append(place)

    threads = [threading.Thread(target=run, args=(place,)) for place in (5, 2, 9, 1, 7)]
    with scheduler.submission_lock():
        for number, thread in enumerate(threads, start=1):
            thread.start()
            waiting(scheduler, number)
    for thread in threads:
        thread.join()
    assert order == [1, 2, 5, 7, 9]


def test_the_first_that_comes_waits_for_those_that_were_started_with_it(monkeypatch):
    """Nothing else keeps it waiting: the clock stands still until all are there."""
    monkeypatch.setattr(slurm, "SETTLE_S", 0.5)
    now = [100.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now[0])
    scheduler = Slurm()
    order: list[int] = []

    def run(place: int) -> None:
        with scheduler.submission_lock(place):
            order.append(place)

    threads = [threading.Thread(target=run, args=(place,)) for place in (3, 1, 2)]
    for number, thread in enumerate(threads, start=1):
        thread.start()
        waiting(scheduler, number)
    now[0] += 0.6
    for thread in threads:
        thread.join()
    assert order == [1, 2, 3]
