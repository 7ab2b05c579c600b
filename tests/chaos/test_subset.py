"""Faults of some kinds, put in at once; `make chaos` puts in all of them, hundreds of times."""

import itertools

import pytest

from tests.chaos import checks
from tests.chaos.__main__ import _turns
from tests.chaos.harness import Laboratory
from tests.chaos.kinds import KINDS
from tests.chaos.victim import Verdict
from workflow_lib.records.contract import STEPS

#: kinds that disturb nobody else on the cluster, and end soon
SUBSET = (
    "rank_killed",
    "all_ranks_killed",
    "sampler_killed",
    "torn_line",
    "scancel",
    "waiting_process_killed",
    "two_invocations",
    "stale_lock",
    "end_record_damaged",
    "job_record_damaged",
    "results_copied",
    "waiting_process+rank_killed",
)


@pytest.mark.slow
@pytest.mark.long
def test_nothing_is_lost_doubled_or_unexplained_after_a_fault(slurm_cluster, tmp_path):
    laboratory = Laboratory(slurm_cluster, tmp_path / "sites")
    kinds = [KINDS[name] for name in SUBSET]
    injections = laboratory.round(kinds, "h200", seed=1, first=0)
    assert [each.kind for each in injections] == list(SUBSET)
    assert {each.kind: each.wrong for each in injections if not each.right} == {}


def test_costly_kinds_come_in_every_third_turn_and_the_others_in_each():
    kinds = [KINDS[name] for name in ("rank_killed", "node_lost", "scancel", "two_snakemakes")]
    names = [kind.name for kind in itertools.islice(_turns(kinds), 10)]
    cheap, all_of_them = ["rank_killed", "scancel"], [kind.name for kind in kinds]
    assert names == [*all_of_them, *cheap, *cheap, "rank_killed", "node_lost"]


def test_a_fault_under_a_condition_must_end_as_the_fault_alone():
    mixed, alone = KINDS["wrappers_slow+scancel"], KINDS["scancel"]
    assert mixed.endings == alone.endings
    assert mixed.inject is not alone.inject
    assert len([kind for kind in KINDS.values() if "+" in kind.name]) >= 20
    assert len(KINDS) >= 80


def test_an_outcome_explains_a_fault_only_where_its_cause_says_so():
    kind, killed = KINDS["rank_killed"], "rank 1 on h200-2 was ended by SIGKILL"
    assert kind.explains(Verdict("error", killed, 0.0))
    assert not kind.explains(Verdict("error", "srun: Force Terminated", 0.0))
    assert not kind.explains(Verdict("cancelled", killed, 0.0))
    assert not kind.explains(Verdict(None, killed, 0.0))


def test_a_torn_last_line_is_no_loss_but_a_torn_line_before_it_is(tmp_path):
    names = [column.name for column in STEPS]
    told = dict(zip(names, ["0", "warmup", "1.0", "", "2.0", "0.5", "64", "1", "1"], strict=False))
    whole = ",".join(told.get(name, "") for name in names) + "\n"
    path = tmp_path / "steps" / "rank0.csv"
    path.parent.mkdir()
    path.write_text(",".join(names) + "\n" + whole + whole[:9])
    assert list(checks.unreadable(tmp_path)) == []
    path.write_text(",".join(names) + "\n" + whole[:9] + "\n" + whole)
    assert list(checks.unreadable(tmp_path)) == [f"{path}:2: {whole[:9]!r}"]


def test_a_record_that_is_no_json_is_found_in_an_earlier_attempt(tmp_path):
    path = tmp_path / "attempts" / "1" / "failure.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"outcome": ')
    (found,) = checks.unreadable(tmp_path)
    assert found.startswith(f"{path}: ")
