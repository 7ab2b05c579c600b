"""A projection of a model on more GPUs than there are, from runs to the page."""

import math
import re
from dataclasses import replace

import polars as pl
import pytest

from tests import shipped
from tests.report.full_matrix import identity, run_row
from tests.texts import lacking, numbers
from workflow_lib import table_files
from workflow_lib.cells import hardware_of
from workflow_lib.projection import planned, project_page
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
    Prices,
    basis,
    facility_mwh,
    indistinguishable,
    project,
    recommended,
    table,
)
from workflow_lib.projection.project_page import (
    FABRICS,
    _number,
    fastest_by_gpus,
    figures,
    meter,
    price,
    replicas,
    verdict,
)
from workflow_lib.records.degrees import Degrees
from workflow_lib.records.labels import labels
from workflow_lib.records.reading import RecordError
from workflow_lib.records.tables import RUNS
from workflow_lib.table_files import write_table

STUDY = shipped.study()
MODEL = STUDY.models["llama3-8b"].record("llama3-8b")
MACHINE = hardware_machine(hardware_of("h200", STUDY.platforms["h200"]))


COMMAND = ["project", "--model", "llama3-8b", "--platform", "h200", "--gpus", "16"]
#: a cell as the evidence has them
CELL = {
    **identity("h200x2", "llama3-8b", Degrees(tp=1, pp=2, dp=1)),
    **{"compile": True, "backend": "torch"},
}


def of_gpus(gpus, batch=512, model=MODEL, machine=MACHINE, platform="h200", stack=None):
    return project(model, machine, platform, gpus, batch, 1e12, stack or own_stack())


@pytest.fixture(scope="module")
def projected():
    return of_gpus(16)


def known(word, each, platform="h200", stack=None):
    """How the part with ``word`` in its name is known, as its kind and text; None without one."""
    stack = stack or own_stack()
    levels_here = levels(stack.runs, each.candidate.layout.machine.gpu)
    texts = [how for what, how in basis(each, stack, levels_here, platform) if word in what]
    assert len(texts) <= 1
    return (texts[0].split(":")[0], texts[0]) if texts else None


def sources(of):
    """For computing and for waiting, whether runs measured it and on which GPUs."""
    return [("measured" in part, re.findall(r"[AH]\d00", part)) for part in of.source.split(";")]


def collected(directory, *rows, runs=2):
    """What is collected of a sweep with runs of each of these rows, as changes of CELL."""
    made = [
        run_row({**CELL, **changes}, run, step_time_s=3.0)
        | {"simulated": False, "power_limit_w": changes.get("power_limit_w")}
        for changes in rows
        for run in range(1, runs + 1)
    ]
    write_table(table_files.table(made, RUNS), directory / "runs.parquet")
    return collect([directory])


@pytest.mark.parametrize("name", ["local", "h200x2-emulated-nodes"])
def test_nothing_is_projected_where_nothing_is_known_or_nodes_are_emulated(name):
    hardware = hardware_of(name, STUDY.platforms[name])
    refusal = hardware_machine(hardware)
    assert isinstance(refusal, str)
    assert (hardware.emulated or "bf16 peak") in refusal


@pytest.mark.parametrize(("limit_w", "is_projected"), [(500, False), (690, False), (700, True)])
def test_nothing_is_projected_for_gpus_that_a_site_limits(limit_w, is_projected):
    # At 500 W they would take the time of those at 700 W, and so 5/7 of their energy.
    limited = hardware_of(
        "h200", STUDY.platforms["h200"].model_copy(update={"power_limit_w": limit_w})
    )
    machine = hardware_machine(limited)
    assert (machine == MACHINE) == is_projected
    assert is_projected or numbers(machine)[:2] == [limit_w, 700]


@pytest.mark.parametrize(
    "option",
    [
        {"power_limits_w": (400,) * 2},
        {"clock_limits_mhz": (1200,) * 2},
        {"backend": "deepspeed"},
        {"backend": "own", "trainer": "torchtitan"},
        {"precision": "fp8"},
    ],
)
def test_no_time_is_projected_of_a_cell_unlike_all_that_were_fitted(option):
    cell = next(
        each.cell for each in shipped.sweeps()["evidence-llama3-8b-x2"].cells if each.feasible
    )
    other = replace(cell, training=replace(cell.training, **option))
    # It would be the time of our engine in bf16 at 700 W and 1980 MHz.
    assert planned.step_time(cell) is not None
    assert planned.step_time(other) is planned.projected(other) is None


@pytest.mark.parametrize(
    ("degrees", "training"),
    [
        ({"gpu_order": (1, 0)}, {}),
        ({"gpu_uuids": ("GPU-1", "GPU-2")}, {}),
        ({}, {"routing": "balanced"}),
    ],
)
def test_no_time_is_projected_of_what_a_layout_cannot_state(degrees, training):
    # Another order of GPUs, or tokens that are dropped, would have the time of the plain cell.
    cell = next(
        each.cell for each in shipped.sweeps()["evidence-llama3-8b-x2"].cells if each.feasible
    )
    other = replace(
        cell,
        degrees=replace(cell.degrees, **degrees),
        training=replace(cell.training, **training),
    )
    assert planned.step_time(cell) is not None
    assert planned.step_time(other) is planned.projected(other) is None


def test_a_die_has_its_share_of_its_package_s_limit_if_the_platform_states_none():
    platform = STUDY.platforms["mi250"]
    stated, known = (
        hardware_machine(hardware_of("mi250", platform.model_copy(update={"power_limit_w": limit})))
        for limit in (500, None)
    )
    assert stated.power_limit_w == known.power_limit_w == 250


def test_nodes_share_their_adapters():
    # One adapter of 100 Gb/s among eight GPUs.
    assert MACHINE.network_bytes_per_s == 100e9 / 8 / 8


def test_every_candidate_spreads_over_all_gpus_and_takes_the_whole_batch():
    found = list(candidates(MODEL, MACHINE, 16, 512))
    assert len({*labels([each.row for each in found])}) == len(found) > 20
    for each in found:
        assert each.layout.gpus == 16
        assert each.layout.tokens == 512 * 8192


def test_groups_of_tensor_parallelism_divide_the_gpus_that_a_job_has_on_each_node():
    # 12 GPUs are six on each of two nodes, which groups of four do not divide. Nine are not spread.
    assert {each.degrees.tp for each in candidates(MODEL, MACHINE, 12, 384)} == {1, 2}
    assert {each.degrees.tp for each in candidates(MODEL, MACHINE, 24, 384)} == {1, 2, 4, 8}
    assert list(candidates(MODEL, MACHINE, 9, 360)) == []


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
    one, two = stack.predict([measured, replace(measured, sharding=2)], "h200x2")
    # The layer of the one is that of the other, whose factor a run gave.
    assert one.unseen == two.unseen
    assert 1.0 < two.median_s / one.median_s < 1.1


def test_layouts_whose_ratio_may_be_one_are_not_told_apart(projected):
    stack = own_stack()
    alike = indistinguishable(projected, stack, "h200")
    assert alike[0] is projected[0]
    assert len(alike) > 1
    # A layout of very many micro-batches takes so much longer that it is told apart.
    second = projected[1].candidate
    layout = replace(second.layout, micro_batches=8e5)
    slow = replace(projected[1], candidate=replace(second, layout=layout))
    assert indistinguishable([projected[0], slow], stack, "h200") == [projected[0]]
    fitting = [each for each in projected if each.candidate.fits == "yes"]
    assert numbers(verdict(projected, alike))[:2] == [len(alike), len(fitting)]
    # So is the word "fastest" licensed, and else is not there.
    assert verdict(projected, alike[:1]).startswith("The fastest")
    told, asked = table(projected, alike)["told_apart"], len(fitting)
    assert told.sum() == asked - len(alike)
    assert told.null_count() == len(projected) - asked


def test_a_batch_has_four_mebi_tokens_and_a_sequence_a_gpu():
    assert batch(MODEL, 16) == 4 * 2**20 // 8192
    assert batch(MODEL, 8192) == 8192
    assert batch(MODEL, 16, 48) == 48


def test_the_figure_over_gpus_has_the_batch_that_was_asked_for(monkeypatch):
    monkeypatch.setattr(project_page, "MOST_GPUS", 64)
    lines = fastest_by_gpus(MODEL, MACHINE, "h200", 1e12, own_stack(), 32)
    assert {line.candidate.layout.tokens for line in lines} == {32 * 8192}
    (ranked, *_) = of_gpus(16, batch=32)
    (drawn,) = (line for line in lines if line.candidate.layout.gpus == 16)
    assert drawn.step_time_s == ranked.step_time_s
    (entry,) = figures(lines, {"a": [], "b": []}, "a model")
    assert "A step has 32 sequences." in entry.caption


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
    node = of_gpus(8)[0]
    # Another site's nodes differ by 8 %.
    assert projected[0].prediction.sd > 0.08
    assert node.prediction.sd < projected[0].prediction.sd


def test_what_it_rests_on_is_said(projected):
    best = projected[0]
    assert numbers(known("number of GPUs", best)[1]) == [16, 2]
    assert known("number of GPUs", best)[0] == "extrapolated"
    kind, said = known("speed", best)
    # 37 cells on up to 2 GPUs, of which 28 on this one.
    assert (kind, numbers(said)[:3]) == ("measured", [37, 2, 28])
    # Two GPUs of another platform are not these nodes, and nothing ran between nodes.
    for platform, expected in (("h200", "assumed as there"), ("h200x2", "measured")):
        kind, said = known("within a node", best, platform)
        assert (kind, numbers(said)) == (expected, [17, 2])
        assert "h200x2" in said
        kind, said = known("between nodes", best, platform)
        assert (kind, numbers(said)) == ("assumed", [100])


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ("H200", [(True, ["H200"])]),
        # The evidence has pipelines on H200 alone.
        ("H100", [(True, ["H100"]), (False, ["H200"])]),
        ("A100 80GB", [(False, ["H100", "H200"]), (False, ["H200"])]),
    ],
)
def test_a_level_that_no_run_on_a_gpu_gives_is_taken_from_others(gpu, expected):
    assert sources(levels(own_stack().runs, gpu)) == expected


def test_experts_are_projected_from_those_that_ran():
    mixture = STUDY.models["mixtral-8x7b-8-layers"].record("mixtral-8x7b-8-layers")
    found = of_gpus(2, 16, mixture)
    of = [each.candidate.training for each in found]
    assert {(training.compile, training.backend) for training in of} == {(True, "torch")}
    experts = next(each for each in found if each.candidate.degrees.ep == 2)
    dense = own_stack([run for run in read_own() if not run.experts])
    others = of_gpus(2, 16, mixture, stack=dense)
    other = next(each for each in others if each.candidate == experts.candidate)
    assert known("experts", experts)[0] == "measured"
    assert known("experts", other, stack=dense)[0] == "not measured"
    # Experts may differ as much as stacks do, by 15 %.
    assert other.prediction.sd > 0.15 > 1.5 * experts.prediction.sd


def test_a_stack_that_was_never_measured_is_as_uncertain_as_stacks_differ():
    stack = own_stack([run for run in read_own() if run.gpu == "H200"])
    h100 = hardware_machine(hardware_of("h100", STUDY.platforms["h100"]))
    best = of_gpus(8, machine=h100, platform="h100", stack=stack)[0]
    assert known("speed", best, "h100", stack)[0] == "not measured"
    # Stacks differ by 15 %.
    assert best.prediction.sd > 0.15


def test_runs_on_one_gpu_say_nothing_of_exchanges():
    stack = own_stack([run for run in read_own() if run.platform == "h200x1"])
    pair = replace(MACHINE, gpus_per_node=2)
    two, one = (of_gpus(n, 8, MODEL, pair, "h200x2", stack)[0] for n in (2, 1))
    # They may differ as much as those of two stacks.
    assert two.prediction.sd > 0.15 > one.prediction.sd
    assert known("within a node", two, "h200x2", stack)[0] == "assumed"
    assert known("within a node", one, "h200x2", stack) is None


def test_no_layout_is_an_error():
    with pytest.raises(RecordError, match=r"\b7 GPUs.*\b512 "):
        of_gpus(7)


def test_a_faster_fabric_is_not_slower(projected):
    slow, fast = (replicas(projected[0], "h200", own_stack(), rate) for rate in FABRICS.values())
    assert slow[-1].candidate.layout.gpus == 8192
    for a, b in zip(slow, fast, strict=True):
        assert b.step_time_s <= a.step_time_s


def test_power_is_the_sum_of_what_gpus_do():
    layout = next(iter(candidates(MODEL, MACHINE, 16, 512))).layout
    # 8 micro-batches and (3 − 1)/1 passes of bubble: without a head a fifth of the time is waiting.
    shape = replace(layout.shape, vocabulary=0)
    layout = replace(layout, pp=3, virtual_stages=1, micro_batches=8, shape=shape, layers=9)
    known = Levels(1.0, 0.0, 0.2, 0.0, "by hand")
    prediction = Prediction(0.0, 0.0, 0.0, {"product": 0.5, "tensor": 0.25, "gather": 0.25}, ())
    # Of the other four fifths a quarter gathers, at 0.6: 0.6 + 0.2·0.2 + 0.2·0.6 = 0.76. Tensor
    # parallelism computes.
    assert gpu_power(layout, prediction, known).power_w == pytest.approx(0.76 * 700)
    # Of the rest ranks with two of three layers wait a third: 0.8·(1 + 2/3 + 2/3)/3 work.
    uneven = replace(layout, stage_layers=(3, 2, 2), layers=7)
    assert waiting_share(uneven) == pytest.approx(1 - 0.8 * 7 / 9)


def test_levels_come_from_runs_with_and_without_a_bubble():
    runs = [run for run in read_own() if run.platform == "h200x2"]
    alone, piped = (next(run for run in runs if (run.pp, run.layers) == (pp, 32)) for pp in (1, 2))
    alone = replace(alone, power_per_gpu_w=700.0)
    # 128,256 rows of 4,096 numbers are the head, as many as in 2.409 layers of 218.1 million. So
    # the stages' work is 16 and 18.409, and (2 − 1)/1 passes of bubble are beside 8.
    works = 8 / 9 * (16 + 18.409) / (2 * 18.409)
    piped = replace(piped, power_per_gpu_w=works * 700 + (1 - works) * 70)
    found = levels([alone, piped], "H200")
    assert (found.compute, found.wait) == (pytest.approx(1.0), pytest.approx(0.1, abs=1e-4))


def test_runs_on_one_gpu_take_the_level_of_waiting_from_elsewhere():
    # No GPU of such runs waits. The evidence has pipelines on H200 and none on this one.
    alone = next(run for run in read_own() if run.pp == 1)
    alone = replace(alone, gpu="A100 80GB", dp=1, power_per_gpu_w=360.0)
    found, shipped = levels([alone], "A100 80GB"), levels([], "H200")
    # 360 W of its limit of 400 W.
    assert (found.compute, found.wait) == (pytest.approx(0.9), shipped.wait)
    assert found.compute_sd < found.wait_sd == 0.10
    assert sources(found) == [(True, ["A100"]), (False, ["H200"])]


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
    write_own(read_own(), tmp_path / "runs.csv")
    assert read_own(tmp_path / "runs.csv") == read_own()


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("pp", "0", "1"),
        ("dp", "-1", "whole number"),
        ("step_time_s", "nan", "0"),
        ("power_per_gpu_w", "-1", "nothing"),
        ("overlap", "yes", "True or False"),
        ("recomputation", "some", "none, selective, full"),
        ("precision", "tf32", "bf16, fp8, fp32"),
    ],
)
def test_a_wrong_value_of_an_own_run_is_named(tmp_path, field, text, expected):
    path = tmp_path / "runs.csv"
    write_own([replace(read_own()[0], **{field: text})], path)
    with pytest.raises(RecordError, match=f"runs.csv, line 2: {field} is '{text}'.*{expected}"):
        read_own(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a\n1\n", "step_time_s.*collect"),
        ("x,1\n".encode("utf-16"), "UTF-8.*collect"),
        (b"{heading}\nx,1\n", "line 2: .* 2 fields.* 32"),
        (b'{heading}\n"' + b"x" * 200_000, "UTF-8: field larger.*collect"),
    ],
)
def test_a_file_of_own_runs_that_is_another_or_damaged_is_refused(tmp_path, content, said):
    path = tmp_path / "runs.csv"
    write_own([], path)
    path.write_bytes(content.replace(b"{heading}", path.read_bytes().strip()))
    with pytest.raises(RecordError, match=rf"runs\.csv.*{said}"):
        read_own(path)


def test_an_own_run_without_a_peak_is_named():
    run = replace(read_own()[0], precision="fp32")
    with pytest.raises(RecordError, match=f"{re.escape(run.cell)}: .* H100 in fp32"):
        _ = run.layout


@pytest.mark.parametrize(
    "other",
    [
        *({"power_limits_w": "[400.0, 400.0]"}, {"clock_limits_mhz": "[1200, 1200]"}),
        *({"stage_layers": "[20, 12]"}, {"gpu_order": "[1, 0]"}),
        *({"gpu_uuids": '["GPU-1", "GPU-2"]'}, {"emulated": "two daemons of one host"}),
        *({"backend": "deepspeed"}, {"routing": "balanced"}),
        *({"precision": "fp32"}, {"precision": "fp8"}),
        {"compile": False, "experts": 0, "zero_stage": 3},
    ],
)
def test_cells_that_a_row_cannot_describe_are_not_fitted(tmp_path, other):
    # A cell at 400 W of 700 would make a stack look slower, and its waiting GPUs cooler.
    found = collected(tmp_path, {}, {"cell": CELL["cell"] + "-other", **other})
    assert [run.cell for run in found] == [CELL["cell"]]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_cell_that_was_not_compiled_is_fitted_as_that(tmp_path, compiled):
    changed = {"gpu_model": "H200", "gpus_per_node": 2, "compile": compiled}
    (found,) = collected(tmp_path, changed)
    assert found.compile == found.layout.compiled == compiled
    write_own([found], tmp_path / "own.csv")
    assert read_own(tmp_path / "own.csv") == [found]


def test_a_cell_of_one_run_is_not_fitted(tmp_path):
    assert collected(tmp_path, {}, runs=1) == []
    (found,) = collected(tmp_path, {})
    assert found.runs == 2


@pytest.mark.parametrize(("limit_w", "is_fitted"), [(500.0, False), (700.0, True), (None, True)])
def test_gpus_that_a_site_limits_are_not_fitted(tmp_path, limit_w, is_fitted):
    found = collected(tmp_path, {"gpu_model": "H200", "power_limit_w": limit_w})
    assert len(found) == is_fitted


def test_runs_of_a_cell_in_several_sweeps_are_taken_together_and_each_counts_once(tmp_path):
    # Two of the first sweep's runs are in the second as well, whose own run 1 is another.
    first, second = ({1: (3.0, 10.0), 2: (4.0, 20.0)}, {1: (9.0, 30.0), 2: (4.0, 20.0)})
    for name, runs in (("one", first), ("two", second)):
        rows = [
            run_row(CELL, run, step_time_s=step_s, started_unix_s=start, power_per_gpu_mean_w=start)
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
    twice = replace(run, cell=run.cell + "-again")
    errors = {each.run.cell: each.error for each in own_stack([*read_own(), twice]).residuals}
    expected = next(each for each in own_stack(read_own()).residuals if each.run == run)
    assert errors[run.cell] == errors[twice.cell] == pytest.approx(expected.error)


def test_runs_that_are_faster_make_the_projection_faster():
    stack = own_stack([replace(run, step_time_s=run.step_time_s / 1.1) for run in read_own()])
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
    whole = ["--tokens", "1.5e13", "--node-rest-w", "1800"]
    assert main([*COMMAND, *whole, "--output", str(tmp_path)]) == 0
    rows = pl.read_parquet(tmp_path / "projection.parquet")
    assert rows["gpus"].unique().to_list() == [16]
    assert rows["step_time_s_low_90"].null_count() == 0
    page, said = (tmp_path / "projection.html").read_text(), capsys.readouterr().out
    assert "not measured" in page
    assert page.count("<svg") == 2
    assert "1800 W " in said
    # Text and page have both intervals of each measure, and what the whole training takes.
    low, high = rows["step_time_s_low_50"][0], rows["step_time_s_high_50"][0]
    for text in (said, page):
        assert f"{_number(low)} to {_number(high)}" in text
        assert "50 %" in text
        assert "1.5·10¹³ tokens" in text


def test_tokens_have_the_price_of_their_hours_and_their_energy(projected):
    best = projected[0]
    hours, mwh = best.values()["gpu_hours"][0], best.values()["energy_mwh"][0]
    both = Prices(2.5, 0.2, "CHF")
    said = numbers(price(best, Facility(None, None), both))
    million = (2.5 * hours + 0.2 * 1e3 * mwh) / best.tokens * 1e6
    assert said[:2] == [2.5, 0.2]
    assert said[2] == pytest.approx(million, rel=5e-3)
    assert said[3] < million < said[4]
    # 1.8 kW of each node of 8, a PUE of 1.2, and no price of hours
    at_meter = price(best, Facility(1800, 1.2), Prices(None, 0.2, "EUR"))
    whole = 1.2 * (mwh + 1800 / 8 * hours / 1e6)
    assert numbers(at_meter)[1] == pytest.approx(200 * whole / best.tokens * 1e6, rel=5e-3)
    assert price(best, Facility(None, None), Prices(None, None, "EUR")) == ""


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--pue", "1.2"], ["--pue", "whole nodes"]),
        (["--cooling", "air"], ["--cooling", "whole nodes"]),
        (["--model", "nobody"], ["nobody"]),
    ],
)
def test_a_model_that_is_not_there_or_half_a_facility_is_refused(tmp_path, capsys, given, named):
    assert main([*COMMAND, *given, "--output", str(tmp_path)]) == 1
    assert lacking(capsys.readouterr().err, *named) == []
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("facility", "named", "cooling"),
    [(Facility(1800, 1.2, "air"), [1800, 1.2], "air"), (Facility(1800), [1800], "not named")],
)
def test_energy_at_the_meter_names_the_cooling(projected, facility, named, cooling):
    said, values = meter(projected[0], facility), projected[0].values()
    mwh = facility_mwh(values["energy_mwh"][0], values["gpu_hours"][0], 8, facility)
    *given, found = numbers(said)
    assert given == named
    assert found == pytest.approx(mwh, rel=1e-3)
    assert cooling in said


def test_a_candidate_that_needs_more_memory_than_there_is_does_not_fit():
    each = next(iter(candidates(MODEL, MACHINE, 16, 512)))
    large = STUDY.models["gpt3-175b"].record("gpt3-175b")
    assert replace(each, model=large).fits == "no"


@pytest.mark.parametrize(
    ("option", "text"),
    [
        *(("--gpus", text) for text in ("0", "-8", "8.5")),
        *(("--batch", "0"), ("--tokens", "-1"), ("--tokens", "nan")),
        *(("--pue", "0.5"), ("--node-rest-w", "lots")),
        *(("--price-per-gpu-hour", "0"), ("--currency", "euro")),
    ],
)
def test_numbers_that_mean_nothing_are_refused(tmp_path, capsys, option, text):
    with pytest.raises(SystemExit) as ended:
        main([*COMMAND, option, text, "--output", str(tmp_path)])
    assert ended.value.code == 2
    assert f"{option}: {text} " in capsys.readouterr().err
