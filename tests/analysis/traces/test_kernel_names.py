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
    class_of_operator,
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
    rows = recorded()
    of_class: dict[str, float] = defaultdict(float)
    for row in rows:
        of_class[found(row)] += float(row["duration_us"])
    assert 0 < of_class[UNKNOWN] < 0.001 * sum(of_class.values())
    # Of 2658 rows: by their name alone, and by name and operator though they were settled.
    assert sum(class_of_kernel(row["name"]) == UNKNOWN for row in rows) == 25
    assert sum(found(row) == UNKNOWN != row["class"] for row in rows) == 10


#: class → names that no recorded trace has, of kernels that were made up or are other libraries'
KERNELS = {
    "gemm": [
        "triton_tem_fused_mm_3",
        "bmm_Bfloat16_t128x16x256_m128x16x32_rM_TN_biasM_bN_swiGlu_sm100f",
    ],
    "attention": ["fmha_cutlassF_bf16_aligned_64x128_rf_sm80(AttentionKernel)", "attn_fwd.kd"],
    "memory": ["__amd_rocclr_copyBuffer.kd"],
    "normalisation_elementwise": [
        "triton_red_fused_native_layer_norm_scaled_dot_product_flash_attention_4",
        "_fused_linear_cross_entropy",
        # Words within the arguments and parameters do not count.
        "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel(at::"
        "TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(float)#1}>(int)",
        "void at::native::elementwise_kernel<128, 2, nccl::sum>(ncclDataType_t)",
        # Nor does the type of a kernel's result.
        "std::enable_if<(width > 0) && attention<T>, void>::type vllm::fused_add_rms_norm<8>(T*)",
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_4gemmEEEEE",
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous "
        "namespace)::TensorListMetadata<2>, at::native::(anonymous namespace)::CopyFunctor<float>",
    ],
    "optimiser": [
        "void apex::multi_tensor_apply_kernel<TensorListMetadata<4>, LAMBStage1Functor<float>>()"
    ],
    "all_reduce": [
        # torch.ops.symm_mem, of torch/csrc/distributed/c10d/symm_mem
        "void c10d::symmetric_memory::(anonymous namespace)::two_shot_all_reduce_kernel<float>()",
        # vLLM, SGLang, AITER and TransformerEngine
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)",
        "_ZN5aiter26cross_device_reduce_2stageIDF16bLi8EEEvPNS_8RankDataE",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
        "userbuffers_fp16_sum_inplace_gpu_rr(int)",
    ],
    "reduce_scatter": [
        "ncclKernel_ReduceScatter_RING_LL_Sum_half(ncclDevComm*)",
        "void userbuffers_fp16_sum_inplace_gpu_rr_rs<8>(int, int)",
    ],
    "all_gather": ["userbuffers_fp16_sum_inplace_gpu_mc_ag(int)"],
    "send_receive": ["kuserbuffers_pushrecv(int, int)"],
    "all_to_all": [
        # DeepEP and NVSHMEM
        "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)",
        "void deep_ep::internode_ll::combine<false, 7168, 9, 3>(void*)",
        "void nvshmem_all_to_all_kernel<float>(float*)",
    ],
    "other_communication": [
        "ncclDevKernel_Reduce_Sum_f32_RING_LL",
        "c10d::symmetric_memory::barrier_kernel(unsigned int**, unsigned long)",
        "void deep_ep::intranode::barrier<8>(int**, int)",
        "nvshmemi_proxy_complete_kernel()",
    ],
    "other_computation": ["void deep_ep::layout::get_dispatch_layout<256, 4, 4>(long const*)"],
    "unknown": [
        "void mine::step<flash::Traits, cutlass::gemm::GemmShape<1>>(AdamFunctor)",
        # Parts of words.
        *("void lambda_kernel<float>()", "sendable_kernel", "normalised_beam_kernel"),
        *("triton__0d1d2d3d", "chunk_fwd_kernel_o"),
    ],
}
#: class → operators that launch kernels whose names do not tell
LAUNCHING = {
    "gemm": ["aten::mm"],
    "attention": [
        "aten::_scaled_dot_product_flash_attention",
        "vllm::unified_attention_with_output",
    ],
    "optimiser": [
        *("aten::_foreach_add_", "aten::_amp_foreach_non_finite_check_and_unscale_"),
        "aten::_fused_adamw_",
    ],
    "normalisation_elementwise": [
        *("aten::_foreach_copy_", "aten::copy_", "aten::embedding_dense_backward")
    ],
    "other_computation": ["aten::sort", "aten::convolution"],
    "all_reduce": ["c10d::allreduce_", "symm_mem::multimem_all_reduce_"],
    "reduce_scatter": ["_c10d_functional::reduce_scatter_tensor"],
    "other_communication": ["record_param_comms"],
    "unknown": [
        *("AddmmBackward0", "aten::empty", "aten::result_type", "Torch-Compiled Region: 0/0")
    ],
}
#: class → operators that stand for kernels where there are none
STANDING = {
    "all_reduce": ["gloo:all_reduce"],
    "all_gather": ["gloo:all_gather"],
    "send_receive": ["gloo:send"],
    "broadcast": ["gloo:broadcast"],
    "other_communication": ["gloo:barrier"],
    "gemm": ["aten::linear"],
    "attention": ["aten::scaled_dot_product_attention"],
    "optimiser": ["aten::_foreach_addcdiv_"],
    "memory": ["aten::copy_"],
    "normalisation_elementwise": ["aten::gelu"],
    "other_computation": ["aten::conv2d", "AddmmBackward0"],
    "unknown": ["mine::attentive"],
}


@pytest.mark.parametrize(
    ("class_of", "name", "kind"),
    [
        (class_of, name, kind)
        for class_of, table in (
            (class_of_kernel, KERNELS),
            (class_of_launched, LAUNCHING),
            (class_of_operator, STANDING),
        )
        for kind, names in table.items()
        for name in names
    ],
)
def test_a_name_has_the_class_that_it_says(class_of, name, kind):
    assert class_of(name) == kind


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
