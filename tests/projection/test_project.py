"""A projection of a model on more GPUs than there are, from runs to the page."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import polars as pl
import pytest

from tests.report.full_matrix import identity, run_row
from workflow_lib import table_files
from workflow_lib.cells import hardware_of
from workflow_lib.projection.__main__ import main
from workflow_lib.projection.candidates import batch, candidates, considered
from workflow_lib.projection.collecting import collect
from workflow_lib.projection.gpu_power import Levels, gpu_power, levels, waiting_share
from workflow_lib.projection.hierarchical_fit import Prediction
from workflow_lib.projection.machines import hardware_machine
from workflow_lib.projection.own_runs import read_own, write_own
from workflow_lib.projection.own_stack import own_stack
from workflow_lib.projection.project import (
    Facility,
    basis,
    facility_mwh,
    indistinguishable,
    project,
    recommended,
    table,
)
from workflow_lib.projection.project_page import _number, meter, verdict
from workflow_lib.projection.scaling import FABRICS, replicas
from workflow_lib.records import RUNS, Degrees, RecordError
from workflow_lib.records.labels import labels
from workflow_lib.study import load_study
from workflow_lib.table_files import write_table

STUDY = load_study(Path("config"))
MODEL = STUDY.models["llama3-8b"].record("llama3-8b")
MACHINE = hardware_machine(hardware_of("h200", STUDY.platforms["h200"]))


@pytest.fixture(scope="module")
def projected():
    return project(MODEL, MACHINE, "h200", 16, 512, 1e12, own_stack())


def test_a_platform_of_which_nothing_is_known_is_refused():
    local = hardware_of("local", STUDY.platforms["local"])
    assert "is not known" in hardware_machine(local)


def test_nothing_is_projected_on_nodes_that_are_emulated():
    name = "h200x2-emulated-nodes"
    emulated = hardware_of(name, STUDY.platforms[name])
    assert "its nodes or links are emulated: its two nodes" in hardware_machine(emulated)


def test_nodes_share_their_adapters():
    # One adapter of 100 Gb/s among eight GPUs.
    assert MACHINE.network_bytes_per_s == 100e9 / 8 / 8


def test_every_candidate_spreads_over_all_gpus_and_takes_the_whole_batch():
    found = list(candidates(MODEL, MACHINE, 16, 512))
    assert len({*labels([each.row for each in found])}) == len(found) > 20
    for each in found:
        assert each.layout.gpus == 16
        assert each.layout.tokens == 512 * 8192


def test_every_stage_of_zero_that_differs_is_a_candidate():
    every = list(candidates(MODEL, MACHINE, 16, 512))
    found = dict(zip(labels([each.row for each in every]), every, strict=True))
    stages = {(each.degrees.dp > 1, each.training.zero_stage) for each in found.values()}
    assert stages == {(False, 1), (True, 1), (True, 2), (True, 3)}
    assert "ZeRO-1, 2, 3" in considered(MODEL)
    assert any(each.degrees.pp > 1 and each.training.zero_stage == 3 for each in found.values())
    for name, each in found.items():
        if each.training.zero_stage == 2:
            # It reduces gradients in every micro-batch: of a single one it would be ZeRO-1.
            assert each.training.micro_batches(each.degrees.dp) > 1
            first = found[name.replace("zero2", "zero1")]
            assert each.memory.total < first.memory.total


def test_zero_2_takes_longer_than_zero_1_by_what_it_scatters():
    stack = own_stack()
    measured = next(run.layout for run in read_own() if run.dp == 2 and run.layers == 32)
    one, two = stack.predict([measured, dataclasses.replace(measured, sharding=2)], "h200x2")
    # The layer of the one is that of the other, whose factor a run gave.
    assert one.unseen == two.unseen
    assert 1.0 < two.median_s / one.median_s < 1.1


def test_layouts_whose_ratio_may_be_one_are_not_told_apart(projected):
    stack = own_stack()
    alike = indistinguishable(projected, stack, "h200")
    assert alike[0] is projected[0]
    assert len(alike) > 1
    # A layout of very many micro-batches takes so much longer that it is told apart.
    slow = dataclasses.replace(
        projected[1],
        candidate=dataclasses.replace(
            projected[1].candidate,
            layout=dataclasses.replace(projected[1].candidate.layout, micro_batches=8e5),
        ),
    )
    assert indistinguishable([projected[0], slow], stack, "h200") == [projected[0]]
    # So is the word "fastest" licensed, and else is not there.
    assert "not told apart" in verdict(projected, alike)
    assert "fastest layout that fits is" in verdict(projected, alike[:1])
    told = table(projected, alike)["told_apart"]
    asked = [each for each in projected if each.candidate.fits == projected[0].candidate.fits]
    assert (told.sum(), told.null_count()) == (
        len(asked) - len(alike),
        len(projected) - len(asked),
    )


def test_a_batch_has_four_mebi_tokens_and_a_sequence_a_gpu():
    assert batch(MODEL, 16) == 4 * 2**20 // 8192
    assert batch(MODEL, 8192) == 8192
    assert batch(MODEL, 16, 48) == 48


def test_layouts_that_fit_come_first_and_the_fastest_of_them(projected):
    fitting = [each.step_time_s for each in projected if each.candidate.fits == "yes"]
    assert fitting == sorted(fitting)
    verdicts = [each.candidate.fits for each in projected]
    assert verdicts == sorted(verdicts, key=["yes", "perhaps", "no"].index)
    # The upper end of what the driver will count of the recommended one is within the GPU.
    best = recommended(projected).candidate
    assert 1.05 * best.memory.with_room <= best.layout.machine.memory_bytes


def test_values_follow_from_the_step_time_and_the_power(projected):
    best = projected[0]
    values = {name: median for name, (median, _) in best.values().items()}
    rate = 512 * 8192 / 16 / values["step_time_s"]
    assert values["tokens_per_s_per_gpu"] == pytest.approx(rate)
    assert values["energy_per_token_j"] == pytest.approx(values["power_per_gpu_w"] / rate)
    assert values["gpu_hours"] == pytest.approx(1e12 / rate / 3600)
    assert values["energy_mwh"] == pytest.approx(values["power_per_gpu_w"] * 1e12 / rate / 3.6e9)
    assert 0.3 < values["mfu_causal"] < 0.7


def test_intervals_hold_one_another_and_power_ends_at_its_limit(projected):
    for each in projected:
        for measure, (median, _) in each.values().items():
            wide, narrow = each.interval(measure, 0.9), each.interval(measure, 0.5)
            assert wide[0] < narrow[0] <= median < narrow[1] <= wide[1]
        assert each.interval("power_per_gpu_w", 0.9)[1] <= 700


def test_on_several_nodes_an_unknown_fabric_makes_intervals_wider(projected):
    stack = own_stack()
    node = project(MODEL, MACHINE, "h200", 8, 512, 1e12, stack)[0]
    # Another site's nodes differ by 8 %.
    assert projected[0].prediction.sd > 0.08
    assert node.prediction.sd < projected[0].prediction.sd


def test_what_it_rests_on_is_said(projected):
    stack = own_stack()
    said = dict(basis(projected[0], stack, levels(stack.runs, "H200"), "h200"))
    assert said["number of GPUs"] == "extrapolated: 16 from 2 of our own"
    assert said["speed of this workflow's stack on this GPU"].startswith(
        "measured: 34 cells of this workflow on up to 2 GPUs, 25 of them on H200; each predicted"
    )
    assert said["power of a GPU that computes or waits"] == "measured on H200"
    # Two GPUs of another platform are not these nodes, and nothing ran between nodes.
    assert said["exchanges within a node"].startswith("assumed as there: 15 cells on up to 2 GPUs")
    assert said["exchanges between nodes"].startswith("assumed: 100 Gb/s a node, by the platform's")
    said = dict(basis(projected[0], stack, levels(stack.runs, "H200"), "h200x2"))
    assert said["exchanges within a node"].startswith(
        "measured: 15 cells on up to 2 GPUs of h200x2"
    )
    assert said["exchanges between nodes"].startswith("assumed")
    taken = levels(stack.runs, "H100")
    # The evidence has pipelines on H200 alone.
    assert taken.source == (
        "computing measured on H100; waiting taken from H200, as shares of the limit"
    )
    assert levels(stack.runs, "A100 80GB").source == (
        "computing taken from H100 and H200, as shares of the limit; "
        "waiting taken from H200, as shares of the limit"
    )


def test_layouts_that_cannot_be_compiled_are_projected_without_it():
    mixture = STUDY.models["mixtral-8x7b-8-layers"].record("mixtral-8x7b-8-layers")
    stack = own_stack()
    found = project(mixture, MACHINE, "h200", 2, 16, 1e12, stack)
    # Experts get other numbers of rows at every step, where they are spread over ranks.
    assert {(each.candidate.degrees.ep, each.candidate.training.compile) for each in found} == {
        (1, True),
        (2, False),
    }
    assert {each.candidate.training.backend for each in found} == {"torch"}
    experts = next(each for each in found if each.candidate.degrees.ep == 2)
    said = dict(basis(experts, stack, levels(stack.runs, "H200"), "h200"))
    assert said["experts by this workflow's stack"] == "measured"
    assert said["layers that are not compiled by this workflow's stack"] == "measured"
    compiled = own_stack([run for run in read_own() if run.compile])
    other = next(
        each
        for each in project(mixture, MACHINE, "h200", 2, 16, 1e12, compiled)
        if each.candidate == experts.candidate
    )
    said = dict(basis(other, compiled, levels(compiled.runs, "H200"), "h200"))
    assert said["experts by this workflow's stack"].startswith("not measured")
    assert said["layers that are not compiled by this workflow's stack"].startswith("not measured")
    # Each may differ as much as stacks do, 15 %: both together by 21 %.
    assert other.prediction.sd > 0.21 > 3 * experts.prediction.sd
    assert all(
        each.candidate.training.compile
        for each in project(MODEL, MACHINE, "h200", 2, 16, 1e12, stack)
    )


def test_a_stack_that_was_never_measured_is_said_to_be_so():
    stack = own_stack([run for run in read_own() if run.gpu == "H200"])
    h100 = hardware_machine(hardware_of("h100", STUDY.platforms["h100"]))
    best = project(MODEL, h100, "h100", 8, 512, 1e12, stack)[0]
    said = dict(basis(best, stack, levels(stack.runs, "H100"), "h100"))
    assert said["speed of this workflow's stack on this GPU"].startswith("not measured")
    # Stacks differ by 15 %.
    assert best.prediction.sd > 0.15


def test_runs_on_one_gpu_say_nothing_of_exchanges():
    stack = own_stack([run for run in read_own() if run.platform == "h200x1"])
    two, one = (
        project(MODEL, dataclasses.replace(MACHINE, gpus_per_node=2), "h200x2", n, 8, 1e12, stack)[
            0
        ]
        for n in (2, 1)
    )
    # They may differ as much as those of two stacks.
    assert two.prediction.sd > 0.15 > one.prediction.sd
    what = "exchanges within a node"
    known = levels(stack.runs, "H200")
    assert "published runs" in dict(basis(two, stack, known, "h200x2"))[what]
    assert what not in dict(basis(one, stack, known, "h200x2"))


def test_no_layout_is_an_error():
    with pytest.raises(RecordError, match="no layout on 7 GPUs with a batch of 512"):
        project(MODEL, MACHINE, "h200", 7, 512, 1e12, own_stack())


def test_a_faster_fabric_is_not_slower():
    stack = own_stack()
    base = project(MODEL, MACHINE, "h200", 16, 512, 1e12, stack)[0]
    slow, fast = (replicas(base, "h200", stack, rate) for rate in FABRICS.values())
    assert slow[-1].candidate.layout.gpus == 8192
    for a, b in zip(slow, fast, strict=True):
        assert b.step_time_s <= a.step_time_s


def test_power_is_the_sum_of_what_gpus_do():
    layout = next(iter(candidates(MODEL, MACHINE, 16, 512))).layout
    # 8 micro-batches and (3 − 1)/1 passes of bubble: without a head a fifth of the time is waiting.
    shape = dataclasses.replace(layout.shape, vocabulary=0)
    layout = dataclasses.replace(
        layout, pp=3, virtual_stages=1, micro_batches=8, shape=shape, layers=9
    )
    known = Levels(1.0, 0.0, 0.2, 0.0, "by hand")
    prediction = Prediction(0.0, 0.0, 0.0, {"product": 0.75, "tensor": 0.25}, ())
    # Of the other four fifths a quarter communicates, at 0.6: 0.6 + 0.2·0.2 + 0.2·0.6 = 0.76.
    assert gpu_power(layout, prediction, known).power_w == pytest.approx(0.76 * 700)
    # Of the rest ranks with two of three layers wait a third: 0.8·(1 + 2/3 + 2/3)/3 work.
    uneven = dataclasses.replace(layout, stage_layers=(3, 2, 2), layers=7)
    assert waiting_share(uneven) == pytest.approx(1 - 0.8 * 7 / 9)


def test_levels_come_from_runs_with_and_without_a_bubble():
    runs = [run for run in read_own() if run.platform == "h200x2"]
    alone, piped = (next(run for run in runs if (run.pp, run.layers) == (pp, 32)) for pp in (1, 2))
    alone = dataclasses.replace(alone, power_per_gpu_w=700.0)
    # 128,256 rows of 4,096 numbers are the head, as many as in 2.409 layers of 218.1 million. So
    # the stages' work is 16 and 18.409, and (2 − 1)/1 passes of bubble are beside 8.
    works = 8 / 9 * (16 + 18.409) / (2 * 18.409)
    piped = dataclasses.replace(piped, power_per_gpu_w=works * 700 + (1 - works) * 70)
    found = levels([alone, piped], "H200")
    assert (found.compute, found.wait) == (pytest.approx(1.0), pytest.approx(0.1, abs=1e-4))


def test_runs_on_one_gpu_take_the_level_of_waiting_from_elsewhere():
    # No GPU of such runs waits. The evidence has pipelines on H200 and none on this one.
    alone = next(run for run in read_own() if run.pp == 1)
    alone = dataclasses.replace(alone, gpu="A100 80GB", dp=1, power_per_gpu_w=360.0)
    found, shipped = levels([alone], "A100 80GB"), levels([], "H200")
    # 360 W of its limit of 400 W.
    assert (found.compute, found.wait) == (pytest.approx(0.9), shipped.wait)
    assert found.compute_sd < found.wait_sd == 0.10
    assert found.source == (
        "computing measured on A100 80GB; waiting taken from H200, as shares of the limit"
    )


def test_runs_with_a_pipeline_alone_take_the_level_of_computing_from_elsewhere():
    piped = next(run for run in read_own() if run.pp > 1)
    found = levels([piped], "H200")
    assert found.compute == levels([], "H200").compute
    assert 0 < found.wait < found.compute


def test_the_facility_is_added_where_it_is_given():
    # 8 000 GPU-hours on nodes of 8 are 1 000 node-hours of 1 kW: 1 MWh more, then the PUE.
    assert facility_mwh(5.0, 8000, 8, Facility(1000, 1.2)) == pytest.approx(7.2)
    assert facility_mwh(5.0, 8000, 8, Facility()) is None


def test_own_runs_are_read_as_they_were_written(tmp_path):
    runs = read_own()
    write_own(runs, tmp_path / "runs.csv")
    assert read_own(tmp_path / "runs.csv") == runs
    (tmp_path / "other.csv").write_text("a\n1\n")
    with pytest.raises(RecordError, match="collect it again"):
        read_own(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("pp", "0", "pp is '0', expected a whole number of at least 1"),
        ("dp", "-1", "dp is '-1', expected a whole number"),
        ("step_time_s", "nan", "step_time_s is 'nan', expected a number above 0"),
        ("power_per_gpu_w", "-1", "power_per_gpu_w is '-1', expected a number above 0, or nothing"),
        ("overlap", "yes", "overlap is 'yes', expected True or False"),
        ("recomputation", "some", "expected one of none, selective, full"),
        ("precision", "tf32", "expected one of bf16, fp8, fp32"),
    ],
)
def test_a_wrong_value_of_an_own_run_is_named(tmp_path, field, text, said):
    path = tmp_path / "runs.csv"
    write_own([dataclasses.replace(read_own()[0], **{field: text})], path)
    with pytest.raises(RecordError, match=rf"runs\.csv, line 2: .*{said}"):
        read_own(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("x,1\n".encode("utf-16"), "is not CSV in UTF-8"),
        (b"{heading}\nx,1\n", "line 2: has 2 fields, expected 32"),
        (b'{heading}\n"' + b"x" * 200_000, "is not CSV in UTF-8: field larger"),
    ],
)
def test_a_file_of_own_runs_that_is_damaged_is_refused(tmp_path, content, said):
    path = tmp_path / "runs.csv"
    write_own([], path)
    path.write_bytes(content.replace(b"{heading}", path.read_bytes().strip()))
    with pytest.raises(RecordError, match=said):
        read_own(path)


def test_an_own_run_without_a_peak_is_named():
    run = dataclasses.replace(read_own()[0], precision="fp32")
    with pytest.raises(RecordError, match="the peak of H100 in fp32 is not known; leave the cell"):
        _ = run.layout


@pytest.mark.parametrize(
    "other",
    [
        {"power_limits_w": "[400.0, 400.0]"},
        {"clock_limits_mhz": "[1200, 1200]"},
        {"stage_layers": "[20, 12]"},
        {"gpu_order": "[1, 0]"},
        {"gpu_uuids": '["GPU-1", "GPU-2"]'},
        {"emulated": "two daemons of one host"},
        {"backend": "deepspeed"},
        {"routing": "balanced"},
        {"precision": "fp32"},
        {"precision": "fp8"},
        {"compile": False, "experts": 0, "zero_stage": 3},
    ],
)
def test_cells_that_a_row_cannot_describe_are_not_fitted(tmp_path, other):
    # A cell at 400 W of 700 would make a stack look slower, and its waiting GPUs cooler.
    usual = {
        **identity("h200x2", "llama3-8b", Degrees(tp=1, pp=2, dp=1)),
        "compile": True,
        "backend": "torch",
    }
    limited = {**usual, "cell": usual["cell"] + "-other", **other}
    rows = [run_row(each, 1, step_time_s=3.0) | {"simulated": False} for each in (usual, limited)]
    write_table(table_files.table(rows, RUNS), tmp_path / "runs.parquet")
    assert [run.cell for run in collect([tmp_path])] == [usual["cell"]]


def test_a_cell_that_was_not_compiled_is_fitted_as_that(tmp_path):
    cell = identity("h200x2", "llama3-8b", Degrees(tp=1, pp=2, dp=1))
    changed = {"backend": "torch", "gpu_model": "H200", "gpus_per_node": 2}
    for compiled in (False, True):
        row = run_row({**cell, **changed, "compile": compiled}, 1, step_time_s=3.0)
        write_table(
            table_files.table([row | {"simulated": False}], RUNS), tmp_path / "runs.parquet"
        )
        (found,) = collect([tmp_path])
        assert found.compile == compiled
        assert found.layout.compiled == compiled
        write_own([found], tmp_path / "own.csv")
        assert read_own(tmp_path / "own.csv") == [found]


def test_runs_of_a_cell_in_several_sweeps_are_taken_together_and_each_counts_once(tmp_path):
    cell = {
        **identity("h200x2", "llama3-8b", Degrees(tp=1, pp=2, dp=1)),
        "compile": True,
        "backend": "torch",
    }
    # Two of the first sweep's runs are in the second as well, whose own run 1 is another.
    first, second = ({1: (3.0, 10.0), 2: (4.0, 20.0)}, {1: (9.0, 30.0), 2: (4.0, 20.0)})
    for name, runs in (("one", first), ("two", second)):
        rows = [
            run_row(cell, run, step_time_s=step_s, started_unix_s=start, power_per_gpu_mean_w=start)
            | {"simulated": False}
            for run, (step_s, start) in runs.items()
        ]
        write_table(table_files.table(rows, RUNS), tmp_path / name / "runs.parquet")
    for order in (("one", "two"), ("two", "one")):
        (found,) = collect([tmp_path / name for name in order])
        assert (found.sweep, found.runs) == ("one two", 3)
        assert (found.step_time_s, found.power_per_gpu_w) == (4.0, 20.0)


def test_a_cell_is_not_predicted_from_another_of_its_layout():
    run = read_own()[0]
    twice = dataclasses.replace(run, cell=run.cell + "-again")
    errors = {each.run.cell: each.error for each in own_stack([*read_own(), twice]).residuals}
    expected = next(each for each in own_stack(read_own()).residuals if each.run == run)
    assert errors[run.cell] == errors[twice.cell] == pytest.approx(expected.error)


@pytest.mark.parametrize(("limit_w", "is_fitted"), [(500.0, False), (700.0, True), (None, True)])
def test_gpus_that_a_site_limits_are_not_fitted(tmp_path, limit_w, is_fitted):
    cell = {
        **identity("h200x2", "llama3-8b", Degrees(tp=1, pp=2, dp=1)),
        "compile": True,
        "backend": "torch",
    }
    cell |= {"gpu_model": "H200"}
    row = run_row(cell, 1, step_time_s=3.0) | {"simulated": False, "power_limit_w": limit_w}
    write_table(table_files.table([row], RUNS), tmp_path / "runs.parquet")
    assert len(collect([tmp_path])) == is_fitted


def test_runs_that_are_faster_make_the_projection_faster():
    stack = own_stack(
        [dataclasses.replace(run, step_time_s=run.step_time_s / 1.1) for run in read_own()]
    )
    layouts = [run.layout for run in read_own()]
    slow = own_stack().predict(layouts, "h200x2")
    fast = stack.predict(layouts, "h200x2")
    ratios = [math.exp(a.log_s - b.log_s) for a, b in zip(slow, fast, strict=True)]
    # Runs that one fit takes for outliers and the other does not are further off.
    assert sum(abs(ratio - 1.1) > 0.005 for ratio in ratios) <= 2
    assert all(1.05 < ratio < 1.16 for ratio in ratios)


def test_numbers_have_three_digits():
    said = [_number(value) for value in (0.0512, 0.7218, 10.28, 796.7, 349012.0)]
    assert said == ["0.0512", "0.722", "10.3", "797", "349,000"]


def test_the_command_writes_a_table_and_a_page(tmp_path, capsys):
    arguments = ["--model", "llama3-8b", "--platform", "h200", "--gpus", "16"]
    arguments += ["--tokens", "1.5e13", "--node-rest-w", "1800"]
    assert main(["project", *arguments, "--output", str(tmp_path)]) == 0
    rows = pl.read_parquet(tmp_path / "projection.parquet")
    assert rows["gpus"].unique().to_list() == [16]
    assert rows["step_time_s_low_90"].null_count() == 0
    page = (tmp_path / "projection.html").read_text()
    assert "Projected, not measured." in page
    assert page.count("<svg") == 2
    said = capsys.readouterr().out
    assert "MWh at the meter" in said
    # Text and page have both intervals of each measure.
    low, high = rows["step_time_s_low_50"][0], rows["step_time_s_high_50"][0]
    assert f"{_number(low)} to {_number(high)}" in said
    assert f"{_number(low)} to {_number(high)}" in page
    assert "50 % interval" in said
    # What the whole training takes is said of so many tokens.
    assert all("MWh for 1.5·10¹³ tokens" in text for text in (said, page))


@pytest.mark.parametrize("given", [["--pue", "1.2"], ["--cooling", "air"]])
def test_a_facility_without_the_rest_of_its_nodes_is_refused(tmp_path, capsys, given):
    asked = ["--model", "llama3-8b", "--platform", "h200", "--gpus", "16", *given]
    assert main(["project", *asked, "--output", str(tmp_path)]) == 1
    assert f"{given[0]} is about whole nodes" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_energy_at_the_meter_names_the_cooling(projected):
    said = meter(projected[0], Facility(1800, 1.2, "air"))
    assert (
        "With 1800 W per node besides its GPUs and a PUE of 1.2, as given for nodes cooled by air,"
        in said
    )
    assert "for nodes whose cooling was not named, the" in meter(projected[0], Facility(1800))


def test_the_command_names_a_model_that_is_not_there(tmp_path, capsys):
    arguments = ["--model", "nobody", "--platform", "h200", "--gpus", "16"]
    assert main(["project", *arguments, "--output", str(tmp_path)]) == 1
    assert "nobody" in capsys.readouterr().err


def test_a_candidate_that_needs_more_memory_than_there_is_does_not_fit():
    each = next(iter(candidates(MODEL, MACHINE, 16, 512)))
    large = STUDY.models["gpt3-175b"].record("gpt3-175b")
    assert dataclasses.replace(each, model=large).fits == "no"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--gpus", "0"], "0 is not a whole number of at least 1"),
        (["--gpus", "-8"], "-8 is not a whole number of at least 1"),
        (["--gpus", "8.5"], "8.5 is not a whole number of at least 1"),
        (["--batch", "0"], "0 is not a whole number of at least 1"),
        (["--tokens", "-1"], "-1 is not a number above 0"),
        (["--tokens", "nan"], "nan is not a number above 0"),
        (["--pue", "0.5"], "0.5 is not a number of at least 1"),
        (["--node-rest-w", "lots"], "lots is not a number above 0"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(tmp_path, capsys, wrong, said):
    asked = ["--model", "llama3-8b", "--platform", "h200", "--gpus", "16", *wrong]
    with pytest.raises(SystemExit) as ended:
        main(["project", *asked, "--output", str(tmp_path)])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
