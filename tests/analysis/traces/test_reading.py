"""Trace files in every state: what can be read is, and what cannot is said."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic_run import assert_holds
from workflow_lib.analysis.traces import decoding
from workflow_lib.analysis.traces.reading import Trace, read_trace

from .kineto import ELEMENTWISE, GEMM, collective, kernel, launch, step, text, write

EVENTS = [
    step(1, 0, 10),
    step(2, 10, 20),
    launch(1, 11),
    launch(12, 12),
    kernel(GEMM, 2.5, 3.125, correlation=11),
    collective(13, 15, [0, 1], correlation=12),
    # An element with objects of its own, between which no file may be cut.
    kernel(ELEMENTWISE, 16, 17, nested=[{"a": 1}, {"b": "}, {"}, {"c": [{}, {}]}]),
]


def trace_of(tmp_path: Path, events: Sequence[Mapping[str, Any]], **header: Any) -> Trace:
    return read_trace(write(tmp_path / "t.json", events, **header))


def trace_in(tmp_path: Path, data: bytes, name: str = "t.json") -> Trace:
    """The trace in a file that holds such bytes."""
    (tmp_path / name).write_bytes(data)
    return read_trace(tmp_path / name)


def starts(trace: Trace) -> list[int]:
    return trace.kernels["start_ns"].to_list()


def test_a_whole_trace_is_read_without_a_note(tmp_path):
    trace = read_trace(write(tmp_path / "t.json.gz", EVENTS, baseTimeNanoseconds=7))
    assert starts(trace) == [2_507, 13_007, 16_007]
    assert trace.kernels["end_ns"].to_list() == [3_132, 15_007, 17_007]
    assert trace.kernels["step"].to_list() == [1, 2, None]
    assert trace.on_gpu
    assert trace.bytes_read == len(text(EVENTS, baseTimeNanoseconds=7).encode())
    assert trace.notes == ()


@pytest.mark.parametrize("chunk_bytes", [1, 7, 64, 500, 4096])
def test_it_does_not_matter_where_a_file_is_cut_into_chunks(tmp_path, monkeypatch, chunk_bytes):
    whole = trace_of(tmp_path, EVENTS)
    monkeypatch.setattr(decoding, "CHUNK_BYTES", chunk_bytes)
    cut = trace_of(tmp_path, EVENTS)
    assert cut.kernels.equals(whole.kernels)
    assert cut.collectives == whole.collectives
    assert cut.notes == ()


def test_a_bare_list_of_events_is_a_trace_too(tmp_path):
    trace = trace_in(tmp_path, json.dumps(EVENTS).encode())
    assert starts(trace) == [2_500, 13_000, 16_000]
    assert trace.notes == ()


@pytest.mark.long
def test_a_file_cut_off_anywhere_gives_what_is_whole_and_says_so(tmp_path):
    data = text(EVENTS).encode()
    counts = []
    for length in range(0, len(data) - 2, 7):
        trace = trace_in(tmp_path, data[:length])
        counts.append(len(starts(trace)))
        assert starts(trace) == [2_500, 13_000, 16_000][: counts[-1]]
        assert trace.notes
    assert counts == sorted(counts), "a longer file gave less"
    assert counts[-1] == 3


def compressed(kernels: int) -> bytes:
    """A gzipped trace of kernels, 10 µs apart, whose numbers do not compress."""
    chance = random.Random(0)
    events = [kernel(GEMM, 10 * i, 10 * i + 5, noise=chance.random()) for i in range(kernels)]
    return gzip.compress(text(events).encode())


def test_a_compressed_file_cut_off_anywhere_gives_what_is_whole_and_says_so(tmp_path):
    data = compressed(300)
    counts = []
    for length in range(0, len(data) - 1, len(data) // 40):
        trace = trace_in(tmp_path, data[:length], "t.json.gz")
        counts.append(len(starts(trace)))
        assert trace.notes
    assert counts == sorted(counts)
    assert counts[-1] > 200


def test_a_compressed_file_with_a_damaged_middle_gives_what_came_before(tmp_path):
    data = bytearray(compressed(3000))
    data[len(data) // 2 : len(data) // 2 + 40] = b"\xff" * 40
    trace = trace_in(tmp_path, data, "t.json.gz")
    assert starts(trace) == [10_000 * i for i in range(len(starts(trace)))]
    assert trace.notes


#: what of an event is damaged, and how; how many of three kernels are left, and a word of the note
DAMAGE: list[tuple[bytes, list[bytes], int, str]] = [
    (b'"name": "sm90', [b'"name": "\xff\xfesm90'], 3, "UTF-8"),
    (b'"name": "sm90', [b'"name": "\x01\tsm90', b'"name": "sm90'], 3, ""),
    (b"0.625", [b"NaN", b"Infinity", b"1e999", b"-5", b"18446744073709551.615"], 2, "time"),
    (b'"ts": 2.5', [b'"ts": null', b'"ts": 18446744073709551615'], 2, "time"),
    (b'"ts": 2.5', [b'"ts": ' + b"9" * 5000], 2, "time"),
    (b'"ts": 2.5', [b'"ts": 999999999999'], 2, "day"),
    (b'"ts": 2.5', [b'"ts": "2.5"'], 3, ""),
    (b'"ts": 2.5', [b'"ts": {}'], 2, "type"),
    (b'"ts": 2.5', [b'"ts": 2.5.5', b'"ts" 2.5'], 2, "damaged"),
    (b'"correlation": 11', [b'"correlation": ' + b"1" * 30, b'"correlation": "x"'], 3, "launch"),
    (b'"stream": 7', [b'"stream": ' + b"[" * 100_000 + b"]" * 100_000], 3, "damaged"),
    (b'"Group size": 2', [b'"Group size": "two"'], 3, "collective"),
    (b'"BFloat16"', [b'"\xff"'], 3, "UTF-8"),
]


@pytest.mark.parametrize(
    ("found", "damage", "kernels", "note"),
    [(whole, damage, *rest) for whole, damages, *rest in DAMAGE for damage in damages],
)
def test_damage_costs_the_event_that_has_it_and_no_other(tmp_path, found, damage, kernels, note):
    data = text(EVENTS).encode()
    assert found in data
    trace = trace_in(tmp_path, data.replace(found, damage, 1))
    assert len(starts(trace)) == kernels
    assert starts(trace)[-2:] == [13_000, 16_000]
    assert len(trace.notes) == bool(note)
    assert_holds(" ".join(trace.notes), note)


def test_a_number_that_no_column_holds_is_left_out(tmp_path):
    events = [step(1, 0, 500), launch(1, 2**63), kernel(GEMM, 10, 60, correlation=5)]
    for several in (events, [*events, launch(3, 12), collective(60, 90, [0, 1])]):
        trace = trace_of(tmp_path, several)
        (note,) = trace.notes
        assert_holds(note, "args", "launch")
        assert starts(trace)[0] == 10_000


def test_what_a_gpu_still_had_to_do_when_the_profiler_began_is_left_out(tmp_path):
    events = [
        *(kernel(GEMM, 0, 5, correlation=7), kernel(GEMM, 5, 9, correlation=8)),
        *(step(1, 0, 50), launch(1, 9), kernel(GEMM, 9, 14, correlation=9)),
        # Its launch is missing, and it was launched within the trace.
        kernel(GEMM, 14, 20, correlation=10),
    ]
    trace = trace_of(tmp_path, events)
    assert starts(trace) == [9_000, 14_000]
    (note,) = trace.notes
    assert_holds(note, "2 times")


def test_what_is_said_of_a_collective_may_be_ill_encoded_among_good_events(tmp_path):
    events = [collective(0, 1, [0, 1]), kernel(GEMM, 1, 2), kernel(GEMM, 2, 3)]
    trace = trace_in(tmp_path, text(events).encode().replace(b"BFloat16", b"\xff"))
    assert trace.kernels["class"].to_list() == ["all_reduce", "gemm", "gemm"]
    (note,) = trace.notes
    assert_holds(note, "args", "collective")


def test_a_quote_that_never_closes_does_not_cost_the_rest(tmp_path):
    data = text(EVENTS).replace('"name": "sm90', '"name": "sm90"" ', 1).encode()
    trace = trace_in(tmp_path, data)
    assert 16_000 in starts(trace)
    assert trace.notes


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b"null", b"\x00" * 100, b"\x1f\x8bnot gzip"]
)
def test_a_file_that_is_no_trace_is_empty_and_says_so(tmp_path, content):
    trace = trace_in(tmp_path, content)
    assert trace.kernels.is_empty()
    assert_holds(" ".join(trace.notes), "no kernels")


def test_random_damage_is_never_an_error(tmp_path):
    chance = random.Random(4)
    data = text(EVENTS * 3).encode()
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            at = chance.randrange(len(damaged))
            damaged[at : at + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
        assert trace_in(tmp_path, damaged).kernels.height <= 3 * 7


def test_times_since_1970_keep_their_microseconds(tmp_path):
    # A float holds 1712195495505582 exactly, but not that times 1000.
    trace = trace_of(tmp_path, [kernel(GEMM, 1712195495505582, 1712195495505585)])
    assert starts(trace) == [1712195495505582000]
    assert trace.notes == ()


def operator(name: str, start: float, end: float, cat: str = "cpu_op", **args: Any) -> Any:
    return kernel(name, start, end, cat, **args)


def test_operators_stand_for_kernels_where_there_are_none(tmp_path):
    elsewhere = operator("gloo:all_reduce", 5, 25, "user_annotation") | {"tid": 2}
    events = [
        step(5, 0, 100),
        operator("aten::linear", 0, 10),
        operator("aten::addmm", 2, 9),
        operator("aten::copy_", 3, 4),
        operator("c10d::allreduce_", 10, 12),
        operator("GeluBackward0", 20, 30),
        operator("aten::gelu_backward", 21, 29),
        operator("Custom", 40, 41),
        elsewhere,
    ]
    groups = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}
    trace = trace_of(tmp_path, events, distributedInfo=groups)
    assert not trace.on_gpu
    assert trace.kernels.select("start_ns", "end_ns", "class").rows() == [
        (0, 10_000, "gemm"),
        (5_000, 25_000, "all_reduce"),
        (21_000, 29_000, "normalisation_elementwise"),
        (40_000, 41_000, "unknown"),
    ]
    assert trace.kernels["step"].to_list() == [5] * 4
    assert trace.groups == {"0": (0, 1)}


def test_the_operator_decides_where_a_kernels_name_does_not(tmp_path):
    def launched(external: int, correlation: int, name: str = "triton__0d1d2d") -> Any:
        numbers = {"External id": external, "correlation": correlation}
        return kernel(name, correlation, correlation + 1, **numbers)

    operators = ("aten::mm", "c10d::allreduce_", "mine::op")
    events = [
        *(operator(name, i, i + 1, **{"External id": i}) for i, name in enumerate(operators, 1)),
        operator("aten::mm", 5, 6, **{"External id": 107}),
        operator("Optimizer.step#AdamW.step", 60, 70, "user_annotation"),
        launch(5, 101),
        launch(65, 104),
        *(launched(1, 101), launched(2, 102), launched(3, 103), launched(4, 104)),
        # What a name says counts more than the operator.
        launched(1, 106, ELEMENTWISE),
        # A correlation that Kineto repeated is no operator's number.
        launched(107, 107),
    ]
    assert trace_of(tmp_path, events).kernels.sort("start_ns")["class"].to_list() == [
        *("gemm", "all_reduce", "unknown", "optimiser", "normalisation_elementwise", "unknown")
    ]
