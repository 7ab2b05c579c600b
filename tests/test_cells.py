"""Sweeps expand to the study's cells, and what cannot run says why, with the arithmetic."""

import dataclasses
import re

import pytest

from tests import shipped
from workflow_lib import cells, feasibility
from workflow_lib.plan import table
from workflow_lib.records.degrees import Degrees
from workflow_lib.study import ConfigError, Files, load_study


@pytest.fixture(scope="module")
def sweeps():
    return shipped.sweeps()


@pytest.fixture
def nothing_projected(monkeypatch):
    """All step times are assumed, and can be had by hand."""
    monkeypatch.setattr(feasibility, "_projection", lambda: lambda cell: None)


def expanded(directory, *names):
    """These sweeps of a configuration, and no others: all take a second."""
    study = load_study(directory)
    of_names = Files({name: study.sweeps[name] for name in names})
    views = cells.expand_study(dataclasses.replace(study, sweeps=of_names))
    for mistake in views.bad.values():
        raise mistake
    return views


def layouts(sweep, model):
    return {
        (planned.cell.degrees.name, planned.cell.training.zero_stage)
        for planned in sweep.cells
        if planned.cell.model.name == model
    }


def test_the_h200_cells_are_the_studys(sweeps):
    sweep = sweeps["parallelism-h200"]
    assert layouts(sweep, "gpt3-175b") == {
        ("tp1-pp32-dp1", 1),
        ("tp2-pp16-dp1", 1),
        ("tp4-pp8-dp1", 1),
        ("tp8-pp4-dp1", 1),
        ("tp8-pp1-dp4", 3),
    }
    assert layouts(sweep, "llama3-70b") == {
        ("tp1-pp16-dp2", 1),
        ("tp2-pp8-dp2", 1),
        ("tp4-pp4-dp2", 1),
        ("tp8-pp2-dp2", 1),
        ("tp8-pp1-dp4", 3),
    }
    assert layouts(sweep, "mixtral-8x7b") == {("tp1-pp1-dp32-ep8", 1), ("tp2-pp1-dp16-ep4", 1)}
    assert layouts(sweep, "mixtral-8x22b") == {
        ("tp1-pp4-dp8-ep8", 1),
        ("tp2-pp2-dp8-ep8", 1),
        ("tp4-pp1-dp8-ep8", 1),
    }


def test_the_h100_cells_are_the_studys_and_one_that_cannot_be(sweeps):
    sweep = sweeps["parallelism-h100"]
    assert layouts(sweep, "gpt3-175b") == {
        ("tp1-pp64-dp1", 1),  # not in the study: 96 layers do not divide into 64 stages
        ("tp2-pp32-dp1", 1),
        ("tp4-pp16-dp1", 1),
        ("tp8-pp8-dp1", 1),
        ("tp8-pp1-dp8", 3),
    }
    assert layouts(sweep, "mixtral-8x7b") == {
        ("tp1-pp2-dp32-ep8", 1),
        ("tp4-pp1-dp16-ep4", 1),
        ("tp2-pp2-dp16-ep4", 1),
        ("tp1-pp4-dp16-ep4", 1),
    }
    assert layouts(sweep, "mixtral-8x22b") == {
        ("tp8-pp1-dp8-ep8", 1),
        ("tp4-pp2-dp8-ep8", 1),
        ("tp2-pp4-dp8-ep8", 1),
        ("tp1-pp8-dp8-ep8", 1),
    }


def test_every_cell_fills_its_platform(sweeps):
    for name, gpus in (
        ("parallelism-h200", 32),
        ("parallelism-h100", 64),
        ("mi250-counterpart", 32),
    ):
        assert {planned.cell.degrees.world_size for planned in sweeps[name].cells} == {gpus}


def test_the_optimisation_sweep_crosses_recomputation_and_overlap(sweeps):
    options = {
        (planned.cell.training.recomputation, planned.cell.training.overlap)
        for planned in sweeps["optimisation-h200"].cells
    }
    assert options == {("none", False), ("none", True), ("full", False), ("full", True)}


def test_a_cell_that_two_sweeps_ask_for_appears_once(sweeps):
    chosen = [sweeps[f"{name}-h200"] for name in ("parallelism", "microbatch")]
    merged = cells.merge(chosen)
    everywhere = [names for _, names in merged.values() if len(names) == 2]
    assert len(everywhere) == len(sweeps["parallelism-h200"].cells)
    assert len(merged) < sum(len(sweep.cells) for sweep in chosen)


def test_no_two_cells_share_a_directory(sweeps):
    every = [planned.cell for sweep in sweeps.values() for planned in sweep.cells]
    by_id = {}
    for cell in every:
        assert by_id.setdefault(cell.id, cell) == cell


@pytest.fixture
def planned_of(study_directory):
    """The cells on h200 of a sweep of one block."""

    def planned(block: str, extra: str = "") -> tuple[cells.PlannedCell, ...]:
        text = (study_directory / "sweeps" / "parallelism.yaml").read_text(encoding="utf-8")
        head = text.partition("matrix:")[0]
        (study_directory / "sweeps" / "one.yaml").write_text(
            f"{head}{extra}matrix:\n  - {{{block}}}\n", encoding="utf-8"
        )
        return expanded(study_directory, "one")["one-h200"].cells

    return planned


@pytest.fixture
def reason_of(planned_of):
    """The reason for which the first cell of a sweep of one block cannot run, or nothing."""
    return lambda block: planned_of(block)[0].reason or ""


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("llama3-8b, tp: 2, pp: 4, dp: 3", "tp × pp × dp = 2 × 4 × 3 = 24, .* 32 GPUs"),
        ("llama3-8b, gpus: 16, tp: 3", "tp 3 .* 16 GPUs"),
        ("llama3-8b, gpus: 16, dp: 3, pp: rest", "dp 3 .* 16 GPUs"),
        ("llama3-8b, tp: 4, pp: 3", "tp × pp = 4 × 3 = 12 .* 32 GPUs"),
        ("llama3-8b, gpus: 1, tp: 2", "tp 2 .* 1 GPU"),
        ("llama3-8b, gpus: 64, dp: rest", "64 GPUs, .*h200 .*4 nodes × 8 = 32"),
        ("gpt3-175b, tp: 32, dp: rest", "tp 32 .*node of 8 GPUs"),
        ("mixtral-8x7b, pp: 32, ep: 3, dp: 1", "EP 3: mixtral-8x7b .*8 experts"),
        ("mixtral-8x7b, pp: 32, dp: 1, virtual_stages: 2",
         "64 pipeline stages: mixtral-8x7b .*32 layers"),
        # The same stages, divided by work.
        ("mixtral-8x7b, pp: 32, dp: 1, virtual_stages: 2, stage_layers: auto",
         "64 pipeline stages: mixtral-8x7b .*32 layers"),
        ("mixtral-8x7b, tp: 8, pp: 4, dp: 1, stage_layers: [8, 8, 8, 9]",
         "stage_layers .*33 layers, .*4 stages .*mixtral-8x7b 32 layers"),
        ("llama3-8b, gpus: 8, dp: 8, gpu_order: [0, 1, 2, 3, 4, 5, 6, 6]",
         r"gpu_order \[0, 1, 2, 3, 4, 5, 6, 6\] .*8 GPUs"),
        ("llama3-8b, gpus: 8, dp: 8, gpu_uuids: [GPU-a, GPU-b]",
         "gpu_uuids names 2 GPUs, expected .*8"),
        ("llama3-8b, ep: 2, dp: rest", "EP 2: llama3-8b .*no experts"),
        ("mixtral-8x7b, ep: 8, tp: 8, dp: rest", "EP 8 with DP 4: "),
        ("llama3-8b, dp: rest, global_batch_size: 100",
         "global batch 100 .*dp × micro-batch = 32 × 1 = 32"),
        ("llama3-8b, gpus: 4, dp: 1, tp: 4, zero_stage: 0, micro_batch_size: 64, "
         "recomputation: none", "GB on a GPU of 150 GB: weights"),
    ],
)  # fmt: skip
def test_what_cannot_run_says_why_with_the_arithmetic(reason_of, block, expected):
    assert re.search(expected, reason_of(f"models: {block}"))


def predicted(against: str, dp: str = "8") -> str:
    gains = "time_gain: [0.03, 0.02, 0.04], energy_gain: [-0.01, -0.02, 0]"
    return (
        "models: llama3-8b, gpus: 8, dp: 8}\n"
        f"  - {{models: llama3-8b, gpus: 8, tp: 2, dp: {dp}, zero_stage: [1, 2], platforms: h200, "
        f"predicted: {{against: {against}, {gains}}}"
    )


def test_a_prediction_is_in_the_plan_beside_its_cell(planned_of, study_directory):
    (plain,) = planned_of("models: llama3-8b, gpus: 8, dp: 8")
    planned_of(predicted(plain.cell.id, "4").replace("[1, 2]", "1"))
    rows = table([expanded(study_directory, "one")["one-h200"]]).to_dicts()
    assert [row["predicted_against"] for row in rows] == [None, plain.cell.id]
    row = rows[1]
    gain = [row[f"predicted_energy_gain{end}"] for end in ("", "_low", "_high")]
    assert (row["predicted_time_gain"], gain) == (0.03, [-0.01, -0.02, 0.0])


def test_a_prediction_is_of_one_cell_against_another_of_its_sweep(reason_of):
    with pytest.raises(ConfigError, match="several cells on h200"):
        reason_of(predicted("h200/x", "4"))
    with pytest.raises(ConfigError, match=r"h200/x, .*no cell"):
        reason_of(predicted("h200/x", "4").replace("[1, 2]", "1"))
    with pytest.raises(ConfigError, match="its interval"):
        reason_of(predicted("h200/x", "4").replace("0.02, 0.04", "0.04, 0.02"))


def test_heads_must_divide_over_tensor_parallel_ranks(reason_of, edit):
    edit("models/gpt3-tiny.yaml", "attention_heads: 4", "attention_heads: 2")
    edit("models/gpt3-tiny.yaml", "kv_heads: 4", "kv_heads: 2")
    reason = reason_of("models: gpt3-tiny, tp: 4, dp: rest, precision: fp32")
    assert re.search("TP 4: gpt3-tiny .* 2 ", reason)


def test_a_run_longer_than_the_partition_takes_is_refused(reason_of, edit):
    edit("platforms/h200.yaml", "time_limit_max_min: 1440", "time_limit_max_min: 20")
    reason = reason_of("models: gpt3-175b, tp: 8, pp: 4, dp: 1")
    assert re.search("limit_max_min is 20: 2 .* 120 s", reason)
    assert "time_limit_margin of" in reason
    cooled = (
        "platforms: h200, models: gpt3-175b, tp: 8, pp: 4, dp: 1, "
        "cool_down: {within_c: 5, limit_s: 600}"
    )
    assert re.search("limit_s .* cool_down", reason_of(cooled))


@pytest.mark.parametrize(
    ("block", "excluded", "left"),
    [
        ("gpt3-175b, dp: 1, tp: [1, 2, 4, 8], pp: rest", "{tp: [1, 2]}", [(4, 1), (8, 1)]),
        # As they are settled: pipelines with ZeRO-3 are torch's, and tp 8 cuts the sequence.
        ("llama3-8b, tp: [1, 8], pp: [1, 4], dp: rest, zero_stage: 3",
         "{backend: torch}, {sequence_parallel: true}", [(1, 32)]),
    ],
)  # fmt: skip
def test_an_exclusion_leaves_out_exactly_what_it_names(planned_of, block, excluded, left):
    sweep_cells = planned_of(f"models: {block}", f"exclude: [{excluded}]\n")
    assert [(each.cell.degrees.tp, each.cell.degrees.dp) for each in sweep_cells] == left


def test_an_exclusion_can_name_a_workload_and_data(planned_of):
    both = "data: [synthetic, python-sources], workload: [pretrain, lora]"
    (planned,) = planned_of(
        f"models: llama3-8b, dp: rest, {both}", "exclude: [{workload: lora}, {data: synthetic}]\n"
    )
    assert planned.cell.training.workload == "pretrain"
    assert planned.cell.data.name == "python-sources"


def ids(directory):
    sweeps = expanded(directory, "parallelism", "mi250-counterpart", "workloads")
    return {planned.cell.id for sweep in sweeps.values() for planned in sweep.cells}


#: the same model, platform and sweep otherwise, edited one after the other
OTHER_OPTIONS = (
    ("platforms/h200.yaml", "account: null", "account: research"),
    ("platforms/h200.yaml", "time_limit_max_min: 1440", "time_limit_max_min: 2880"),
    ("platforms/h200.yaml", "exclude_nodes: []", "exclude_nodes: [gpu7]"),
    ("platforms/h200.yaml", "power_limit_w: 700", "power_limit_w: 650"),
    ("platforms/h200.yaml", "gpu_memory_gb: 150.1", "gpu_memory_gb: 150.2"),
    ("platforms/h200.yaml", "airflow: [unknown", "airflow: [front"),
    ("models/gpt3-175b.yaml", "description: GPT-3 175B", "description: GPT-3, 175B"),
    ("platforms/h200.yaml", "link_gb_per_s: 450", "link_gb_per_s: 400"),
    ("platforms/h200.yaml", "qos: null", "emulated: by two daemons of one host"),
    ("sweeps/parallelism.yaml", "repeats: 3", "repeats: 5"),
    ("sweeps/parallelism.yaml", "profiled_steps: 2", "profiled_steps: 3"),
    # What the model has anyway.
    ("models/llama3-70b.yaml", "layers: 80", "layers: 80\ntied_embeddings: false"),
    ("models/llama3-70b.yaml", "layers: 80", "layers: 80\nhead_dimension: 128"),
    ("models/llama3-70b.yaml", "layers: 80", "layers: 80\nactivation: silu"),
    ("models/llama3-70b.yaml", "layers: 80", "layers: 80\nnorm_epsilon: 1.0e-5"),
)


def test_other_options_keep_the_directory(study_directory, edit):
    before = ids(study_directory)
    for name, old, new in OTHER_OPTIONS:
        edit(name, old, new)
    assert ids(study_directory) == before


def test_what_a_platform_emulates_is_stated_or_read_from_nccl(study_directory, edit):
    def said(directory):
        cells = expanded(directory, "optimisation")["optimisation-h200"].cells
        return {planned.cell.emulated for planned in cells}

    assert said(study_directory) == {None}
    # As the first emulated nodes, whose platform could not state it.
    edit("platforms/h200.yaml", "NCCL_DEBUG: WARN", 'NCCL_P2P_DISABLE: "0"')
    assert said(study_directory) == {None}
    edit("platforms/h200.yaml", 'NCCL_P2P_DISABLE: "0"', 'NCCL_P2P_DISABLE: "1"')
    (words,) = said(study_directory)
    assert "(NCCL_P2P_DISABLE)" in words
    edit("platforms/h200.yaml", "account: null", "emulated: two daemons")
    assert said(study_directory) == {"two daemons"}


@pytest.mark.parametrize("name", ["h200x1-emulated-nodes", "h200x2-emulated-nodes"])
def test_the_shipped_platforms_of_emulated_nodes_say_so(sweeps, name):
    planned = [each for sweep in sweeps.values() if sweep.platform == name for each in sweep.cells]
    assert planned
    assert all("slurmds" in each.cell.emulated for each in planned)


@pytest.mark.parametrize(
    ("name", "old", "new", "moved"),
    [
        ("models/mixtral-8x7b.yaml", "length: 4096", "length: 2048", "/mixtral-8x7b/"),
        ("models/llama3-70b.yaml", "layers: 80", "layers: 80\nrotary_base: 1e6", "/llama3-70b/"),
        ("platforms/h200.yaml", "NCCL_DEBUG: WARN", "NCCL_ALGO: Ring", "h200/"),
    ],
)
def test_what_changes_training_moves_the_directory(study_directory, edit, name, old, new, moved):
    before = ids(study_directory)
    edit(name, old, new)
    after = ids(study_directory)
    assert before - after == {each for each in before if moved in each} != set()
    # All but the digits are as they were.
    assert {each.rpartition("_")[0] for each in before} == {
        each.rpartition("_")[0] for each in after
    }


@pytest.fixture
def limited(planned_of, edit):
    """Plans one cell of eight GPUs with limits, on a platform whose site allows them."""
    edit("platforms/h200.yaml", "telemetry: nvidia", "telemetry: nvidia\ngpu_settings: allowed")
    return lambda limits, gpus=8: planned_of(
        f"models: llama3-8b, gpus: {gpus}, dp: {gpus}{limits}"
    )[0]


def test_one_limit_is_that_of_every_gpu_of_a_node(limited):
    one = limited(", power_limits_w: 500, clock_limits_mhz: 1200", gpus=16)
    assert one.reason is None
    assert one.cell.training.power_limits_w == (500,) * 8
    assert one.cell.training.clock_limits_mhz == (1200,) * 8
    assert one.cell.training.name.endswith("-500x8w-1200x8mhz")
    # Said for each of them, it is the same cell.
    listed = "power_limits_w: [500, 500, 500, 500, 500, 500, 500, 500], clock_limits_mhz: 1200"
    assert limited(f", {listed}", gpus=16).cell == one.cell


def test_limits_are_part_of_the_cell(limited):
    plain = limited("")
    hot = limited(", power_limits_w: [500, 700, 700, 700, 700, 700, 700, 700]")
    assert "-500.700x7w_" in hot.cell.id
    assert not plain.cell.training.sets_limits
    assert hot.cell.training.sets_limits
    digests = {each.cell.id.rpartition("_")[2] for each in (plain, hot)}
    assert len(digests) == 2
    # Before there were limits, this cell had the same id.
    assert plain.cell.id == "h200/llama3-8b/tp1-pp1-dp8_mb1-gb128-bf16-zero1-recompute_2141ec4e"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("gpu_settings: allowed", "gpu_settings: forbidden", "config/platforms/h200.yaml"),
        ("telemetry: nvidia", "telemetry: amd", "NVIDIA GPUs alone"),
        ("telemetry: nvidia", "telemetry: auto", "NVIDIA GPUs alone"),
        ("container: null", "container: {runtime: pyxis, image: i}", "a container lack"),
    ],
)
def test_limits_are_refused_where_no_job_can_set_them(limited, edit, old, new, expected):
    edit("platforms/h200.yaml", old, new)
    assert expected in limited(", power_limits_w: 500").reason
    assert limited("").reason is None


def test_a_limit_for_too_few_gpus_is_refused(limited):
    assert "the 8 GPUs" in limited(", clock_limits_mhz: [1200, 1300]").reason


def test_the_step_time_is_that_of_the_flops_at_the_expected_mfu(sweeps, nothing_projected):
    planned = next(
        each
        for each in sweeps["parallelism-h200"].cells
        if each.cell.degrees == Degrees(tp=8, pp=4, dp=1)
    )
    # 6·(174.6 B less 0.025 B positions) + 6·96·12288·2048 FLOPs a token, 128·2048 tokens,
    # a third more for recomputation, 3/128 more for the bubble, over 32 × 989.4e12 × 0.4.
    multiplied = 174604259328 - 2048 * 12288
    flops = (6 * multiplied + 6 * 96 * 12288 * 2048) * 128 * 2048 * 4 / 3
    expected = flops * (1 + 3 / 128) / (32 * 989.4e12 * 0.4)
    platform = shipped.study().platforms["h200"]
    cost = feasibility.estimate(planned.cell, platform)
    assert cost.step_time_s == pytest.approx(expected, rel=1e-9)


def test_unknown_peaks_give_no_estimate(sweeps):
    for planned in sweeps["demo"].cells:
        if planned.estimate is not None:
            assert planned.estimate.step_time_s is None
            assert planned.estimate.gpu_hours(planned.cell, 3) is None


def test_names_say_what_the_options_are(sweeps):
    cell = sweeps["optimisation-h200"].cells[0].cell
    training = dataclasses.replace(cell.training, overlap=True, recomputation="full", zero_stage=3)
    assert training.name == "mb1-gb128-bf16-zero3-recompute-overlap-torch"
    assert Degrees(tp=2, pp=3, dp=8, ep=4).name == "tp2-pp3-dp8-ep4"
    assert (
        Degrees(pp=2, virtual_stages=2, stage_layers=(3, 2, 2, 2), gpu_order=(1, 0)).name
        == "tp1-pp2x2-dp1-l3.2x3-g1.0"
    )
    name = r"h200/gpt3-175b/tp1-pp32-dp1_mb1-gb128-bf16-zero1-torch_[0-9a-f]{8}"
    assert re.fullmatch(name, cell.id)


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [
        ({"pp": 4}, (20, 20, 20, 20)),
        # 80 = 32·2 + 16: one more for each of the stages 1 to 16
        ({"pp": 32}, (2, *[3] * 16, *[2] * 15)),
        ({"pp": 79}, (1, 2, *[1] * 77)),
        # The first gets one more after those, and the last one last.
        ({"pp": 2, "virtual_stages": 2}, (2, 2, 2, 1)),
        ({"pp": 2}, (3, 2)),
    ],
)
def test_layers_left_over_go_to_the_middle_stages(degrees, expected):
    assert Degrees(**degrees).layers_of_stages(sum(expected)) == expected


@pytest.mark.parametrize(
    ("block", "field", "expected"),
    [
        ("models: llama3-8b, dp: rest", "backend", "deepspeed"),
        ("models: llama3-8b, dp: rest, backend: torch", "backend", "torch"),
        # what DeepSpeed refuses goes to torch
        ("models: llama3-8b, pp: 4, dp: 8, zero_stage: 3", "backend", "torch"),
        # what both refuse says the reason of the one that can do more
        ("models: llama3-8b, pp: 4, dp: 8, zero_stage: 2", "backend", "torch"),
        # options that mean nothing in a cell are not in it
        ("models: llama3-8b, dp: rest, routing: balanced", "routing", None),
        ("models: llama3-8b, dp: rest, balancing_loss: 0.01", "balancing_loss", 0.0),
        ("models: llama3-8b, dp: rest", "sequence_parallel", False),
        ("models: llama3-8b, tp: 8, dp: rest", "sequence_parallel", True),
        ("models: mixtral-8x7b, dp: rest", "routing", "balanced"),
        ("models: llama3-8b, dp: rest", "lora_rank", 0),
        ("models: llama3-8b, dp: rest, workload: [pretrain, lora], lora_rank: 8", "lora_rank", 0),
        ("models: llama3-8b, dp: rest, workload: lora, lora_rank: 8", "lora_rank", 8),
        ("models: llama3-8b, dp: rest", "generated_tokens", 0),
        ("models: llama3-8b, dp: rest, workload: [pretrain, inference], cuda_graphs: true",
         "cuda_graphs", False),
        ("models: llama3-8b, dp: rest, precision: [bf16, fp8], fp8_recipe: tensorwise",
         "fp8_recipe", "rowwise"),
        ("models: llama3-8b, dp: rest, precision: fp8, fp8_recipe: tensorwise",
         "fp8_recipe", "tensorwise"),
        ("models: mixtral-8x7b, dp: rest, workload: inference, balancing_loss: 0.01",
         "balancing_loss", 0.0),
        # what DeepSpeed runs as ZeRO-1 is called so
        ("models: llama3-8b, gpus: 8, tp: 8, dp: 1, zero_stage: 0", "zero_stage", 1),
        ("models: llama3-8b, gpus: 8, tp: 4, dp: 2, zero_stage: 0, backend: torch",
         "zero_stage", 0),
    ],
)  # fmt: skip
def test_options_are_settled_by_the_cell(planned_of, block, field, expected):
    training = planned_of(block)[0].cell.training
    assert getattr(training, field) == expected


def test_lists_that_say_what_is_so_without_them_make_no_other_cell(planned_of):
    lists = "stage_layers: [16, 16], gpu_order: [0, 1, 2, 3, 4, 5, 6, 7]"
    (planned,) = planned_of(f"models: llama3-8b, pp: 2, dp: 16, {lists}")
    assert planned.cell.degrees == Degrees(pp=2, dp=16)


@pytest.mark.parametrize(
    ("block", "orders"),
    [
        # The platform has 4 nodes of 8 GPUs: each stage is once on each GPU of its node.
        ("gpus: 8, pp: 8",
         [(), *(tuple((gpu + turn) % 8 for gpu in range(8)) for turn in range(1, 8))]),
        # TP groups move as a whole.
        ("gpus: 8, tp: 4, pp: 2", [(), (4, 5, 6, 7, 0, 1, 2, 3)]),
        # Of 8 stages over 4 nodes each node has two.
        ("tp: 4, pp: 8", [(), (4, 5, 6, 7, 0, 1, 2, 3)]),
        # Nothing can change places without stages.
        ("dp: rest", [()]),
    ],
)  # fmt: skip
def test_rotated_gpus_have_each_stage_of_their_node_once(planned_of, block, orders):
    rotated = planned_of(f"models: llama3-8b, {block}, gpu_order: rotated")
    assert [planned.cell.degrees.gpu_order for planned in rotated] == orders


def test_stages_by_work_are_cells_of_their_own_beside_even_ones(planned_of):
    sweep_cells = planned_of("models: llama3-8b, pp: [1, 4], dp: rest, stage_layers: [even, auto]")

    # Recomputed layers: the head is worth 1.57 of them. One stage is the same either way.
    names = [planned.cell.degrees.name for planned in sweep_cells]
    assert names == ["tp1-pp1-dp32", "tp1-pp4-dp8", "tp1-pp4-dp8-l8.9.8.7"]
    assert [planned.feasible for planned in sweep_cells] == [True] * 3


def test_even_stages_are_what_cells_have_without_the_word(planned_of):
    ids = []
    for words in ("", ", stage_layers: even", ", stage_layers: [even]"):
        sweep_cells = planned_of(f"models: llama3-8b, pp: 4, dp: rest{words}")
        ids += [planned.cell.id for planned in sweep_cells]

    assert len(ids) == 3
    assert len(set(ids)) == 1


def test_data_of_an_entry_replace_the_sweeps(planned_of):
    both = "models: llama3-8b, dp: rest, data: [synthetic, python-sources]"
    of_sweep = planned_of(both, "exclude: [{data: synthetic, zero_stage: 3}]\n")
    (plain,) = planned_of("models: llama3-8b, dp: rest")

    assert [planned.cell.data.name for planned in of_sweep] == ["synthetic", "python-sources"]
    # The sweep's data are synthetic: the same cell, whichever way they are named.
    assert of_sweep[0].cell == plain.cell
    assert of_sweep[1].cell.id != plain.cell.id


@pytest.fixture
def cell_of_protocol(study_directory, edit):
    """The cell on h200 of a sweep that is told how to measure."""

    def planned(protocol: str) -> cells.PlannedCell:
        text = (study_directory / "sweeps" / "overhead.yaml").read_text(encoding="utf-8")
        head, _, rest = text.partition("  interleaved_rates_hz")
        rest = rest.partition("block_s: 10\n")[2]
        text = f"{head}{protocol}{rest}".replace("[h200x8, h200, h100]", "[h200]")
        (study_directory / "sweeps" / "one.yaml").write_text(text, encoding="utf-8")
        (found,) = expanded(study_directory, "one")["one"].cells
        return found

    return planned


def test_a_cool_down_is_to_a_distance_from_idle(cell_of_protocol, nothing_projected, edit):
    plain = cell_of_protocol("  sample_rate_hz: 10\n")
    assert plain.cell.telemetry.cool_down_to_c is None
    assert plain.cell.telemetry.cool_down_limit_s == 0
    asking = "  sample_rate_hz: 10\n  cool_down: {within_c: 5, limit_s: 600}\n"
    cooled = cell_of_protocol(asking)
    telemetry = cooled.cell.telemetry
    assert (telemetry.cool_down_to_c, telemetry.cool_down_limit_s) == (40.0, 600.0)
    assert cooled.cell.id != plain.cell.id
    # The wait counts in full: it may take that long.
    assert cooled.estimate.run_time_s == pytest.approx(plain.estimate.run_time_s + 600)
    # 120 s of start-up, 10 s idle, 620 steps of 7 × 1.0655 s: 4,754.3 s. Twice that, rounded up.
    assert (plain.estimate.time_limit_min, cooled.estimate.time_limit_min) == (159, 179)
    # Where nothing asks for it, correcting the figure trains nothing.
    edit("platforms/h200.yaml", "idle_temperature_c: 35", "idle_temperature_c: 30")
    assert cell_of_protocol("  sample_rate_hz: 10\n").cell.id == plain.cell.id
    assert cell_of_protocol(asking).cell.telemetry.cool_down_to_c == 35.0


def test_an_entry_may_have_a_cool_down_of_its_own(study_directory):
    path = study_directory / "sweeps" / "evidence-cool-down.yaml"
    plain, cooled = expanded(study_directory, path.stem)["evidence-cool-down-h200x1"].cells
    asked = [each.cell.telemetry for each in (plain, cooled)]
    assert [each.cool_down_to_c for each in asked] == [None, 37.0]
    assert [each.cool_down_limit_s for each in asked] == [0.0, 90.0]
    assert cooled.estimate.run_time_s == pytest.approx(plain.estimate.run_time_s + 90)
    # That of the protocol is for entries without one.
    text = path.read_text(encoding="utf-8").replace(
        "idle_baseline_s: 10", "idle_baseline_s: 10\n  cool_down: {within_c: 4, limit_s: 60}"
    )
    path.write_text(text, encoding="utf-8")
    of_both = expanded(study_directory, path.stem)["evidence-cool-down-h200x1"].cells
    limits = [each.cell.telemetry.cool_down_limit_s for each in of_both]
    assert limits == [60.0, 90.0]


def test_a_profiled_run_is_one_more_run_of_the_same_cell(cell_of_protocol, nothing_projected):
    plain = cell_of_protocol("  sample_rate_hz: 10\n")
    profiled = cell_of_protocol("  sample_rate_hz: 10\n  profiled_steps: 3\n")
    assert profiled.cell == plain.cell
    assert plain.runs == tuple(range(1, plain.repeats + 1))
    assert profiled.runs == (*plain.runs, 0)
    # 120 s of start-up and 20 + 3 steps of 1.0655 s on 8 GPUs: 0.3211 h.
    cell, estimate = plain.cell, plain.estimate
    more = estimate.gpu_hours(cell, 3, 3) - estimate.gpu_hours(cell, 3)
    assert more == pytest.approx(0.3211, abs=1e-4)


def test_the_local_sweep_of_traces_profiles_cells_of_the_demo(sweeps):
    profiled = {each.cell.id for each in sweeps["traces-local"].cells}
    assert profiled < {each.cell.id for each in sweeps["demo"].cells}


def test_a_cell_of_two_sweeps_is_profiled_where_either_asks_for_it(cell_of_protocol):
    plain = cell_of_protocol("  sample_rate_hz: 10\n")
    views = [
        cells.Sweep(name, name, "", "h200", (dataclasses.replace(plain, **wanted),))
        for name, wanted in (
            ("a", {"repeats": 5, "profiled_steps": 0}),
            ("b", {"repeats": 3, "profiled_steps": 2}),
        )
    ]
    ((merged, names),) = cells.merge(views).values()
    assert (merged.repeats, merged.profiled_steps, names) == (5, 2, ("a", "b"))


def test_the_peaks_of_links_are_a_gpus_in_its_node_and_a_nodes_between_nodes(sweeps):
    # NVLink's 900 GB/s are of both directions; one adapter of 100 Gb/s is 12.5 GB/s.
    for platform, inside in (("h200", 450e9), ("mi250", None)):
        name = "mi250-counterpart" if platform == "mi250" else "parallelism-h200"
        hardware = sweeps[name].cells[0].cell.hardware
        assert (hardware.intra_node_bytes_per_s, hardware.inter_node_bytes_per_s) == (
            inside,
            12.5e9,
        )
    assert sweeps["demo"].cells[0].cell.hardware.inter_node_bytes_per_s is None


def test_rates_that_alternate_are_the_cells(cell_of_protocol):
    planned = cell_of_protocol("  interleaved_rates_hz: [0, 1, 50]\n  block_s: 10\n")
    telemetry = planned.cell.telemetry
    assert (telemetry.interleaved_rates_hz, telemetry.block_s) == ((0, 1, 50), 10)
    assert telemetry.sample_rate_hz == 50
    assert planned.feasible
    assert cell_of_protocol("  sample_rate_hz: 50\n").cell.telemetry.interleaved_rates_hz == ()


def test_too_few_steps_for_two_rounds_are_refused(cell_of_protocol, nothing_projected):
    # 6·7.505e9 + 6·32·4096·8192 FLOPs a token, 8·8192 tokens a step, over 8 × 989.4e12 × 0.4:
    # 600 steps of 1.0655 s are 639 s. Two rounds of three rates are six blocks.
    rates = "  interleaved_rates_hz: [0, 1, 50]\n"
    assert cell_of_protocol(f"{rates}  block_s: 106\n").feasible
    refused = cell_of_protocol(f"{rates}  block_s: 107\n")
    assert re.findall(r"\d+", refused.reason) == ["600", "639", "2", "3", "107", "642"]
    assert refused.reason.endswith("more measured_steps")


def test_a_field_that_came_later_leaves_the_cells_as_they_were(sweeps):
    # As version 0.1 named them, before models had a rotary_base.
    ids = {each.cell.id for sweep in sweeps.values() for each in sweep.cells}
    layout = "tp8-pp1-dp4_mb1-gb128-bf16-zero3-sp-recompute"
    assert f"h200/gpt3-175b/{layout}_82352046" in ids
    assert f"h200/llama3-70b/{layout}_b900c706" in ids
    assert "local/llama3-tiny/tp1-pp1-dp2_mb2-gb16-fp32-zero3_36aa4aa6" in ids
    # Mixtral's base became 10⁶: another model than was trained before.
    mixtral = "h200/mixtral-8x7b/tp1-pp1-dp32-ep8_mb1-gb128-bf16-zero1-recompute-balanced"
    assert f"{mixtral}_4726c2a6" not in ids
    assert any(each.startswith(mixtral) for each in ids)
