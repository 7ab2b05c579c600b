"""A shortened trace is read as the whole one is."""

from __future__ import annotations

import gzip
import json

import pytest
from polars.testing import assert_frame_equal

from workflow_lib.analysis.traces.names import MEMORY, UNKNOWN, class_of_kernel
from workflow_lib.analysis.traces.reading import read_trace
from workflow_lib.analysis.traces.shortening import shortened

from .kineto import ALL_REDUCE, GEMM, collective, kernel, launch, step, text, write

UNNAMED = "kernel_that_nobody_knows"
ANNOUNCED = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1]"}
READ = [
    step(1, 0, 10),
    kernel("Optimizer.step#AdamW.step", 8, 9, cat="user_annotation"),
    launch(1, 11),
    launch(12, 12),
    kernel(GEMM, 2.5, 3.125, correlation=11),
    collective(13, 15, [0, 1], correlation=12),
    kernel("record_param_comms", 4, 5, cat="cpu_op", **ANNOUNCED, **{"External id": 4}),
    kernel(ALL_REDUCE, 5, 6, **{"External id": 4, "correlation": 13}),
    kernel("aten::copy_", 6, 7, cat="cpu_op", **{"External id": 5}),
    kernel(UNNAMED, 7, 8, **{"External id": 5, "correlation": 14}),
    kernel("Memcpy DtoD", 8, 9, cat="gpu_memcpy"),
]
NOT_READ = [
    kernel("aten::mm", 1, 2, cat="cpu_op", **{"External id": 6}),
    kernel("cudaDeviceSynchronize", 3, 4, cat="cuda_runtime", correlation=99),
    kernel("my part", 3, 4, cat="user_annotation"),
    kernel("my part", 3, 4, cat="gpu_user_annotation"),
    {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 11, "ts": 1, "pid": 0, "tid": 1},
]


def test_it_is_read_as_the_whole_trace(tmp_path):
    assert class_of_kernel(UNNAMED) == UNKNOWN
    events = [event for pair in zip(READ, [*NOT_READ, *READ], strict=False) for event in pair]
    ranks = {"pg_config": [{"pg_name": "1", "ranks": [0, 1]}]}
    whole = write(tmp_path / "whole.json.gz", events, baseTimeNanoseconds=7, distributedInfo=ranks)
    short = tmp_path / "short.json.gz"
    short.write_bytes(shortened(whole) or b"")
    one, other = read_trace(whole), read_trace(short)
    assert UNKNOWN not in one.kernels["class"]
    assert MEMORY in one.kernels["class"]
    assert one.bytes_read == other.bytes_read
    assert_frame_equal(one.kernels, other.kernels)
    assert_frame_equal(one.steps, other.steps)
    assert (one.collectives, one.groups) == (other.collectives, other.groups)
    left = json.loads(gzip.decompress(short.read_bytes()))
    assert left["traceEvents"] == [event for event in events if event in READ]
    assert left["traceName"] == "x"


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(text([kernel("aten::mm", 0, 1, cat="cpu_op")]).encode()),
        gzip.compress(text(READ).encode()[:-30]),
        gzip.compress(text(READ).encode())[:-30],
        gzip.compress(b'{"traceEvents": [{"cat": "kernel", "args": 3}]}'),
        gzip.compress(b"{}"),
        b"",
        text(READ).encode(),
    ],
    ids=["of a CPU", "cut", "cut gzip", "no args", "no events", "empty", "not gzipped"],
)
def test_what_is_not_a_whole_trace_of_a_gpu_stays_as_it_is(tmp_path, content):
    path = tmp_path / "t.json.gz"
    path.write_bytes(content)
    assert shortened(path) is None
