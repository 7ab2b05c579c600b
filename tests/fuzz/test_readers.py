"""Whatever a file holds, whoever reads it takes it rightly or says in one sentence why not.

``make test`` gives each reader a few hundred inputs, the same each time; ``make test-all`` 100 000
others each time. A reader that fails shows the smallest such input that hypothesis finds.
"""

from __future__ import annotations

import os
import resource
import time

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz import readers
from workflow_lib.records import bounds
from workflow_lib.safety import printable

USUAL_INPUTS = 150
INPUTS = int(os.environ.get("TRIPTYCH_FUZZ_INPUTS", USUAL_INPUTS))
#: Not parquet: polars itself ends the process on some damaged files, where it asks for more memory
#: than there is, and no error can be caught.
#: CPU time of one input, and memory of them all
LONGEST_S, MOST_BYTES = 10.0, 1 << 30
NAMES = (
    *(f"record-{kind}" for kind in ("Cell", "OutcomeRecord", "RankRecord", "TelemetryStart")),
    *(f"record-{kind}" for kind in ("ErrorRecord", "ExitRecord", "JobRecord", "EndedRecord")),
    *("record-SubmissionRecord", "summary", "csv-gpu", "csv-counters", "csv-host", "csv-steps"),
    *("configuration", "trace", "archive", "versions", "figure", "environment", "log"),
    "tokens",
)


@pytest.fixture(scope="module")
def all_readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, readers.Reader]:
    return readers.all_readers(tmp_path_factory.mktemp("right"))


def test_every_reader_is_among_them(all_readers):
    assert set(all_readers) == set(NAMES)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", NAMES)
def test_a_reader_takes_or_refuses_whatever_there_is(name, all_readers, tmp_path):
    reader = all_readers[name]
    answers = {"taken": 0, "refused": 0}

    @settings(
        max_examples=INPUTS,
        deadline=None,
        database=None,
        derandomize=INPUTS == USUAL_INPUTS,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(content=reader.contents)
    def read(content: bytes) -> None:
        began_s = time.process_time()
        try:
            reader.read(content, tmp_path)
        except readers.REFUSALS as error:
            answers["refused"] += 1
            said = printable(str(error))
        else:
            answers["taken"] += 1
            said = ""
        assert len(said) < 2 * bounds.MESSAGE_LETTERS.most
        assert time.process_time() - began_s < LONGEST_S

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES
    # Of these two, damage costs a part and is told of.
    assert answers["refused"] or name in ("trace", "log"), "what is made up must be wrong at times"
