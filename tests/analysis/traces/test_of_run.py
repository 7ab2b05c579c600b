"""The command on a run's directory."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.synthetic_run import assert_holds, cell
from workflow_lib.analysis.__main__ import main
from workflow_lib.analysis.traces.of_run import analyse_run
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.outcomes import Outcome, OutcomeRecord
from workflow_lib.records.paths import RunPaths
from workflow_lib.records.tables import KERNELS, TRACES
from workflow_lib.records.whole_files import write_json
from workflow_lib.table_files import read_table

from .kineto import GEMM, collective, kernel, write


def profiled(directory: Path) -> RunPaths:
    """A run of two replicas, the second of which comes 60 µs late."""
    paths = RunPaths(directory)
    write_json(paths.cell, cell())
    for rank, start in ((0, 0), (1, 60)):
        write(paths.trace(rank), [collective(start, 100, [0, 1])])
    return paths


def test_a_profiled_run_gets_its_tables(tmp_path, capsys):
    paths = profiled(tmp_path / "run2")
    assert main(["traces", str(paths.directory), "--intra-node-gb-per-s", "100"]) == 0
    kernels = read_table(paths.kernels, KERNELS)
    ranks = read_table(paths.trace_times, TRACES)
    assert kernels.select("cell", "run", "rank", "class", "group", "fabric").rows() == [
        (cell().id, 2, rank, "all_reduce", "DP", "intra_node") for rank in (0, 1)
    ]
    # 2 MB in the 40 µs after the late rank came, of 100 GB/s.
    assert kernels["link_share"].to_list() == pytest.approx([0.5, 0.5])
    assert ranks["late_s"].to_list() == pytest.approx([0, 60e-6])
    assert "all_reduce" in capsys.readouterr().out


def test_the_same_traces_give_the_same_bytes(tmp_path):
    paths = profiled(tmp_path / "run1")
    tables = (paths.kernels, paths.trace_times)
    made = [
        (main(["traces", str(paths.directory)]), *(t.read_bytes() for t in tables)) for _ in "ab"
    ]
    assert made[0] == made[1]


def test_peaks_of_links_are_the_cells_unless_they_are_given(tmp_path):
    paths = profiled(tmp_path / "run0")
    write_json(paths.cell, cell(intra_node_bytes_per_s=200e9))
    # 2 MB in 40 µs are 50 GB/s.
    for given, share in (([], 0.25), (["--intra-node-gb-per-s", "100"], 0.5)):
        assert main(["traces", str(paths.directory), "--quiet", *given]) == 0
        assert read_table(paths.kernels, KERNELS)["link_share"].to_list() == pytest.approx(
            [share, share]
        )


def test_a_profiled_run_that_ran_out_of_memory_has_tables_without_rows(tmp_path, capsys):
    paths = RunPaths(tmp_path / "run0")
    write_json(paths.cell, cell())
    ended = OutcomeRecord(
        Outcome.OUT_OF_MEMORY, "rank 3 needs more", "7", ("n1",), 0.0, 9.0, "FAILED", False
    )
    write_json(paths.outcome, ended)
    assert main(["traces", str(paths.directory)]) == 0
    assert read_table(paths.kernels, KERNELS).is_empty()
    assert read_table(paths.trace_times, TRACES).is_empty()
    assert_holds(capsys.readouterr().out, "out_of_memory", "rank 3 needs more")


def test_a_run_that_was_not_profiled_is_told_so(tmp_path, capsys):
    paths = RunPaths(tmp_path / "run1")
    write_json(paths.cell, cell())
    assert main(["traces", str(paths.directory)]) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert_holds(error, str(paths.traces))


def test_traces_are_found_by_the_names_that_torch_gives(tmp_path):
    def analysed(ranks: int, **files: dict[str, Any]) -> tuple[list[int], tuple[str, ...]]:
        paths = RunPaths(Path(tempfile.mkdtemp(dir=tmp_path)) / "run0")
        write_json(paths.cell, cell(degrees=Degrees(dp=ranks)))
        for name, header in files.items():
            write(paths.traces / name, [kernel(GEMM, 0, 1)], **header)
        found = analyse_run(paths.directory)
        return found.ranks["rank"].to_list(), found.remarks

    one, two = ({"distributedInfo": {"rank": rank, "world_size": 2}} for rank in (0, 1))
    # As tensorboard_trace_handler and export_chrome_trace name them.
    named = {"n1_41.17.pt.trace.json": one, "n1_42.19.pt.trace.json.gz": two}
    assert analysed(2, **named) == ([0, 1], ())
    assert analysed(2, **{f"rank-{n}.Apr_03.11.pt.trace.json": {} for n in "01"})[0] == [0, 1]
    assert analysed(2, **{"rank0.json": {}, "w_rank_1.pt.trace.json.gz": {}})[0] == [0, 1]
    assert analysed(1, **{"worker0.pt.trace.json.gz": {}}) == ([0], ())
    # Of two traces of a rank the later one counts; one without a rank counts for none.
    ranks, remarks = analysed(2, **named, **{"n1_42.20.pt.trace.json": two, "x.pt.trace.json": {}})
    assert ranks == [0, 1]
    assert [remark.partition(":")[0] for remark in remarks] == [
        *("n1_42.19.pt.trace.json.gz", "x.pt.trace.json")
    ]
