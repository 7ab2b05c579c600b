"""The class of every kernel of recorded traces, against classes that were settled by reading."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from pathlib import Path

import pytest

from workflow_lib.analysis.traces.names import (
    CLASSES,
    UNKNOWN,
    class_of_kernel,
    class_of_launched,
    taken_apart,
    words,
)

NAMES = Path(__file__).parents[2] / "data" / "kernel_names.csv.gz"


def recorded() -> list[dict[str, str]]:
    with gzip.open(NAMES, "rt", encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def found(row: dict[str, str]) -> str:
    kind = class_of_kernel(row["name"])
    return class_of_launched(row["operator"]) if kind == UNKNOWN else kind


def test_no_recorded_kernel_has_another_class_than_the_settled_one():
    rows = recorded()
    assert len({row["name"] for row in rows}) == 1199
    assert {row["class"] for row in rows} <= set(CLASSES)
    wrong = [
        (row["name"][:120], row["operator"], found(row), row["class"])
        for row in rows
        if found(row) not in (row["class"], UNKNOWN)
    ]
    assert wrong == []


def test_what_stays_unknown_is_less_than_a_thousandth_of_the_kernels_time():
    of_class: dict[str, float] = defaultdict(float)
    for row in recorded():
        of_class[found(row)] += float(row["duration_us"])
    assert 0 < of_class[UNKNOWN] < 0.001 * sum(of_class.values())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # torch.ops.symm_mem, of torch/csrc/distributed/c10d/symm_mem
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*",
         "all_reduce"),
        ("void c10d::symmetric_memory::(anonymous namespace)::two_shot_all_reduce_kernel<float>()",
         "all_reduce"),
        ("c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long)",
         "other_communication"),
        # vLLM, SGLang and AITER
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        ("_ZN5aiter26cross_device_reduce_2stageIDF16bLi8EEEvPNS_8RankDataE", "all_reduce"),
        ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
         "all_reduce"),
        # TransformerEngine
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs<8>(int, int)", "reduce_scatter"),
        ("userbuffers_fp16_sum_inplace_gpu_mc_ag(int)", "all_gather"),
        ("userbuffers_fp16_sum_inplace_gpu_rr(int)", "all_reduce"),
        ("kuserbuffers_pushrecv(int, int)", "send_receive"),
        # DeepEP and NVSHMEM
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "all_to_all"),
        ("void deep_ep::internode_ll::combine<false, 7168, 9, 3>(void*)", "all_to_all"),
        ("void deep_ep::intranode::barrier<8>(int**, int)", "other_communication"),
        ("void deep_ep::layout::get_dispatch_layout<256, 4, 4>(long const*)", "other_computation"),
        ("nvshmemi_proxy_complete_kernel()", "other_communication"),
        ("void nvshmem_all_to_all_kernel<float>(float*)", "all_to_all"),
    ],
)  # fmt: skip
def test_kernels_of_other_libraries_than_nccl_communicate(name, kind):
    assert class_of_kernel(name) == kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        # Words within the arguments and parameters.
        ("void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(at::"
         "TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(float)#1}>(int)",
         "normalisation_elementwise"),
        ("void mine::step<flash::Traits, cutlass::gemm::GemmShape<1>>(AdamFunctor)", "unknown"),
        ("void at::native::elementwise_kernel<128, 2, nccl::sum>(ncclDataType_t)",
         "normalisation_elementwise"),
        ("bmm_Bfloat16_t128x16x256_m128x16x32_rM_TN_biasM_bN_swiGlu_sm100f", "gemm"),
        # Parts of words.
        ("void lambda_kernel<float>()", "unknown"),
        ("sendable_kernel", "unknown"),
        ("normalised_beam_kernel", "unknown"),
        ("triton__0d1d2d3d", "unknown"),
        ("_fused_linear_cross_entropy", "normalisation_elementwise"),
        ("chunk_fwd_kernel_o", "unknown"),
        # What the type of a kernel's result says.
        ("std::enable_if<(width > 0) && attention<T>, void>::type vllm::fused_add_rms_norm<8>(T*)",
         "normalisation_elementwise"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_4gemmEEEEE", "normalisation_elementwise"),
        ("void apex::multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>>()",
         "optimiser"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
         "namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<float>",
         "normalisation_elementwise"),
    ],
)  # fmt: skip
def test_only_whole_words_of_a_kernels_own_name_decide(name, kind):
    assert class_of_kernel(name) == kind


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        ("aten::mm", "gemm"),
        ("aten::_scaled_dot_product_flash_attention", "attention"),
        ("vllm::unified_attention_with_output", "attention"),
        ("aten::_foreach_add_", "optimiser"),
        ("aten::_amp_foreach_non_finite_check_and_unscale_", "optimiser"),
        ("aten::_foreach_copy_", "normalisation_elementwise"),
        ("aten::_fused_adamw_", "optimiser"),
        ("aten::copy_", "normalisation_elementwise"),
        ("aten::embedding_dense_backward", "normalisation_elementwise"),
        ("aten::sort", "other_computation"),
        ("aten::convolution", "other_computation"),
        ("c10d::allreduce_", "all_reduce"),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter"),
        ("symm_mem::multimem_all_reduce_", "all_reduce"),
        ("record_param_comms", "other_communication"),
        ("AddmmBackward0", "unknown"),
        ("aten::empty", "unknown"),
        ("aten::result_type", "unknown"),
        ("Torch-Compiled Region: 0/0", "unknown"),
    ],
)
def test_the_launching_operator_tells_what_a_name_does_not(operator, kind):
    assert class_of_launched(operator) == kind


@pytest.mark.parametrize(
    ("name", "path", "arguments"),
    [
        ("void a::(anonymous namespace)::k<4, b::F<float>, (c)2>(int)", "a k", "b F float c"),
        ("_ZN7cutlass6KernelINS_4convELi128ENS_4GemmEEEvNT_6ParamsE", "cutlass Kernel",
         "conv Gemm Params"),
        ("_Z3addPfi", "add", ""),
        ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x8", ""),
        ("attn_fwd.kd", "attn_fwd.kd", ""),
        ("void k<cut::off", "k", "cut off"),
        ("", "", ""),
    ],
)  # fmt: skip
def test_a_name_is_taken_apart(name, path, arguments):
    parts = taken_apart(name)
    assert (parts.path, parts.arguments) == (tuple(path.split()), tuple(arguments.split()))


def test_an_identifier_has_the_words_that_one_reads():
    assert words("cunn_SoftMaxForward") == ["cunn", "soft", "max", "forward"]
    assert words("MIOpenBatchNormBwdSpatial") == ["mi", "open", "batch", "norm", "bwd", "spatial"]
    assert words("ncclDevKernel_AllReduce_Sum_bf16_RING_LL")[2:5] == ["kernel", "all", "reduce"]
