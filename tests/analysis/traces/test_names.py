"""Names of kernels, collectives and groups, as they occur in real traces."""

from __future__ import annotations

import pytest

from workflow_lib.analysis.traces.groups import axis_of, fabric_of, listed_ranks
from workflow_lib.analysis.traces.names import class_of_kernel, class_of_operator
from workflow_lib.records import Degrees, group_members


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "gemm"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NTN", "gemm"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nt_align4>(int)", "gemm"),
        ("volta_sgemm_128x32_nt", "gemm"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1", "gemm"),
        ("triton_tem_fused_mm_3", "gemm"),
        ("void splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>(int)", "gemm"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128>>", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(AttentionKernel)", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("attn_fwd.kd", "attention"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>",
         "normalisation_elementwise"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>",
         "normalisation_elementwise"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false>",
         "normalisation_elementwise"),
        ("triton_red_fused_native_layer_norm_scaled_dot_product_flash_attention_4",
         "normalisation_elementwise"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>>",
         "optimiser"),
        ("Memcpy DtoD (Device -> Device)", "memory"),
        ("Memset (Device)", "memory"),
        ("__amd_rocclr_copyBuffer.kd", "memory"),
        ("void at::native::sbtopk::gatherTopK<float>", "other_computation"),
        ("void cub::DeviceRadixSortOnesweepKernel<cub::Policy800, long>", "other_computation"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgs)", "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_gather"),
        ("ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*)", "reduce_scatter"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_receive"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*)", "broadcast"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage)", "other_communication"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "other_communication"),
    ],
)  # fmt: skip
def test_a_kernel_has_the_class_that_its_name_says(name, kind):
    assert class_of_kernel(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_reduce", "all_reduce"),
        ("gloo:all_gather", "all_gather"),
        ("gloo:send", "send_receive"),
        ("gloo:broadcast", "broadcast"),
        ("gloo:barrier", "other_communication"),
        ("aten::linear", "gemm"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("aten::_foreach_addcdiv_", "optimiser"),
        ("aten::copy_", "memory"),
        ("aten::gelu", "normalisation_elementwise"),
        ("aten::conv2d", "other_computation"),
        ("AddmmBackward0", "other_computation"),
        ("mine::attentive", "unknown"),
    ],
)
def test_an_operator_has_the_class_that_its_name_says(name, kind):
    assert class_of_operator(name) == kind


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("[0, 1]", 2, (0, 1)),
        ("[5]", 1, (5,)),
        ("[0, 2, 4, ...]", 64, tuple(range(0, 128, 2))),
        ("[0, 2, 5, ...]", 64, None),
        ("[0, 2, ...]", None, None),
        ("", 2, None),
        ("[a]", 1, None),
        (None, 2, None),
    ],
)
def test_long_lists_of_ranks_are_filled_in_only_where_that_is_sure(text, size, ranks):
    assert listed_ranks(text, size) == ranks


LAYOUT = Degrees(tp=2, pp=2, dp=4, ep=2)


@pytest.mark.parametrize(
    ("ranks", "kind", "axis"),
    [
        ((0, 1), "all_reduce", "TP"),
        ((0, 8), "send_receive", "PP"),
        ((0, 2, 4, 6), "all_reduce", "DP"),
        ((0, 2), "all_to_all", "EP"),
        # Replicas that hold copies of the same experts.
        ((0, 4), "all_reduce", "DP"),
        ((0, 1, 8, 9), "all_reduce", "TP+PP"),
        (tuple(range(16)), "all_reduce", "TP+DP+PP"),
        ((0,), "all_reduce", None),
    ],
)
def test_ranks_name_the_axis_of_the_layout(ranks, kind, axis):
    assert axis_of(ranks, None, kind, 0, LAYOUT) == axis


def test_experts_over_all_replicas_are_told_by_what_they_exchange():
    layout = Degrees(dp=4, ep=4)
    assert axis_of(range(4), None, "all_to_all", 0, layout) == "EP"
    assert axis_of(range(4), None, "all_reduce", 0, layout) == "DP"
    assert axis_of(range(4), "mesh_ep", "all_reduce", 0, layout) == "EP"


@pytest.mark.parametrize(
    ("description", "axis"),
    [
        ("mesh_tp", "TP"),
        ("dp_shard", "DP"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "PP"),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", "TP+CP"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "CP+DP"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "EP"),
        ("EXPERT_DATA_PARALLEL_GROUP", "DP"),
        ("TENSOR_AND_EXPERT_PARALLEL_GROUP", "TP+EP"),
        ("metadata", None),
        ("default_pg", None),
    ],
)
def test_without_a_layout_the_groups_description_says(description, axis):
    assert axis_of((0, 1), description, "all_reduce", 0, None) == axis


def test_a_group_on_one_node_stays_inside_of_it():
    assert fabric_of((0, 7), 8) == "intra_node"
    assert fabric_of((7, 8), 8) == "inter_node"
    assert fabric_of((0, 1), None) is None


@pytest.mark.parametrize("axes", ["TP", "PP", "DP", "EP", "TP+PP", "TP+DP", "DP+PP", "TP+DP+PP"])
def test_every_rank_knows_the_groups_that_training_makes(axes):
    for members in group_members(LAYOUT, *axes.lower().split("+")):
        for rank in members:
            assert axis_of(members, None, "all_reduce", rank, LAYOUT) == axes


def test_ranks_that_the_layout_does_not_have_are_told_by_the_groups_description():
    assert axis_of((0, 16), "mesh_pp", "send_receive", 0, LAYOUT) == "PP"
    assert axis_of((0, 16), None, "send_receive", 0, LAYOUT) is None


def test_the_ranks_of_a_sequence_have_an_axis_of_their_own():
    layout = Degrees(tp=2, cp=2, dp=2)

    assert axis_of((0, 2), None, "all_gather", 0, layout) == "CP"
    # Weights are gathered over all ranks that hold the same.
    assert axis_of((0, 2, 4, 6), None, "all_gather", 0, layout) == "CP+DP"
    assert axis_of((0, 2), "cp", "all_gather", 0, None) == "CP"
