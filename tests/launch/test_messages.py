"""What is said goes to the terminal and to a run's log, and costs no run."""

import sys

from workflow_lib.launch import messages


def test_a_process_without_standard_error_goes_on_and_writes_its_log(tmp_path, monkeypatch):
    # As Python has it of a process that was started with `2>&-`.
    monkeypatch.setattr(sys, "stderr", None)
    log = tmp_path / "run1.log"
    with messages.logged(log):
        messages.say("submitted job 7")
    assert log.read_text(encoding="utf-8") == "triptych: submitted job 7\n"
