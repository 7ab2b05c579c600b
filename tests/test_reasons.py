"""Reasons of nulls: a code has a sentence, values and a prefix, and comes back from a row."""

import json
import pickle

import pytest

from workflow_lib.analysis.known import missing_of
from workflow_lib.records.reasons import SENTENCES, Reason, missing, values_of


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_has_its_values_and_no_others(code):
    values = dict.fromkeys(values_of(code), 1)
    assert Reason(code, **values).code == code
    with pytest.raises(TypeError):
        Reason(code, **values, superfluous=1)


def test_an_unknown_code_is_refused():
    with pytest.raises(KeyError):
        Reason("no_such_code")


def test_a_reason_of_a_gpu_keeps_its_code():
    reason = Reason("counter_fell", counter="energy_j").of("node1 GPU 1")
    assert (str(reason), reason.code) == (
        "node1 GPU 1: the counter energy_j ran backwards",
        "counter_fell",
    )


def test_a_reason_goes_to_another_process_whole():
    reason = Reason("counter_fell", counter="energy_j").of("node1 GPU 1")
    copied = pickle.loads(pickle.dumps(reason))
    assert (copied, copied.code, copied.values) == (reason, reason.code, reason.values)


def test_a_null_of_which_nobody_said_why_has_a_code():
    row = missing_of({"energy_j": (None, ""), "loss_first": (2.5, "")})
    assert json.loads(row["missing_codes"]) == {"energy_j": "no_reason"}


def test_a_row_keeps_code_and_sentence():
    row = missing({"energy_j": Reason("counter_fell", counter="energy_j")})
    assert json.loads(row["missing_codes"]) == {"energy_j": "counter_fell"}
    stored = Reason.of_column(row, "energy_j")
    assert (stored.code, stored.of("here").code) == ("counter_fell",) * 2
    assert Reason.of_column(row, "loss_first").code == "no_reason"
    earlier = {"missing_reasons": row["missing_reasons"]}
    assert Reason.of_column(earlier, "energy_j").code == "unclassified"
