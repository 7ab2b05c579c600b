"""The names of kernels and collectives, and the class that each name belongs to.

Sources of the names: PyTorch's ``ATen/native/cuda`` and Inductor's generated kernels; cuBLAS, cuDNN
and CUTLASS as they appear in traces of V100 to H200; Tensile, hipBLASLt and composable kernels on
MI250; NCCL's and RCCL's ``src/device`` (``ncclKernel_<collective>_…`` up to 2.18, then
``ncclDevKernel_…``; RCCL's one ``…_Generic`` kernel serves every collective); the names of
collectives that ``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`` gives to
``record_param_comms``, and those of ``ProcessGroupGloo.cpp``.
"""

from __future__ import annotations

import re

GEMM, ATTENTION, NORMALISATION_ELEMENTWISE = "gemm", "attention", "normalisation_elementwise"
OPTIMISER, OTHER_COMPUTATION = "optimiser", "other_computation"
MEMORY = "memory"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, SEND_RECEIVE, BROADCAST = "all_to_all", "send_receive", "broadcast"
OTHER_COMMUNICATION = "other_communication"

COMPUTATION = (GEMM, ATTENTION, NORMALISATION_ELEMENTWISE, OPTIMISER, OTHER_COMPUTATION)
COMMUNICATION = (
    ALL_REDUCE,
    ALL_GATHER,
    REDUCE_SCATTER,
    ALL_TO_ALL,
    SEND_RECEIVE,
    BROADCAST,
    OTHER_COMMUNICATION,
)
#: every class, in the order of tables
CLASSES = (*COMPUTATION, MEMORY, *COMMUNICATION)

#: bytes of one element, by the name of c10's scalar type
ELEMENT_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "QInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}

_COMMUNICATES = re.compile(r"^(?:void )?(?:nccl|rccl|msccl)|^gloo:")

#: name part → class; the first part that occurs in a name of a kernel, of torch or of gloo decides.
#: Names are compared without underscores.
_COLLECTIVES = (
    ("allreduce", ALL_REDUCE),
    ("allgather", ALL_GATHER),
    ("reducescatter", REDUCE_SCATTER),
    ("alltoall", ALL_TO_ALL),
    ("sendrecv", SEND_RECEIVE),
    ("send", SEND_RECEIVE),
    ("recv", SEND_RECEIVE),
    ("broadcast", BROADCAST),
)

#: The first pattern that matches a kernel's name decides. Inductor names a fused kernel after every
#: operator in it, so the patterns of Inductor's kinds of kernels come first.
_KERNELS = tuple(
    (re.compile(pattern, re.IGNORECASE), kind)
    for pattern, kind in (
        (r"^Mem(?:cpy|set)\b|^Copy(?:Host|Device)To|amd_rocclr_(?:copy|fill)", MEMORY),
        (r"^triton_for_", OPTIMISER),
        (r"^triton_(?:poi|red|per|mix)_", NORMALISATION_ELEMENTWISE),
        (r"multi_?tensor_apply|adam|\blamb|foreach|sgd_|fused_opt", OPTIMISER),
        (r"flash|fmha|attention|attn|sdpa", ATTENTION),
        (
            r"gemm|gemv|nvjet|xmma|Cijk_|splitKreduce|cublas|hipblas|tensorop|triton_tem_|\bdot_"
            r"|matmul|_mm_",
            GEMM,
        ),
        (
            r"norm|element_?wise|softmax|reduce_?kernel|Functor|fill|copy|cat_?array|triton"
            r"|dropout|gelu|silu|swiglu|rotary|rope|embedding|index|gather|scatter|nll_loss"
            r"|cross_entropy|bias|bn_(?:fw|bw)|welford|transpose|permute",
            NORMALISATION_ELEMENTWISE,
        ),
    )
)

#: the same for operators on a CPU, where a trace has no kernels
_OPERATORS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"attention", ATTENTION),
        (r"^aten::(?:_?addmm|_?mm|_?bmm|baddbmm|linear|matmul|_grouped_mm|dot|mv)_?$", GEMM),
        (r"^aten::_fo?r?each|^aten::_fused_(?:adam|sgd)", OPTIMISER),
        (r"^aten::(?:copy_|_to_copy|clone|fill_|zero_|contiguous)$", MEMORY),
        (
            r"^aten::(?:empty|as_strided|view|t|transpose|expand|detach|select|slice|resize|item"
            r"|lift|reshape|result_type|resolve)",
            OTHER_COMPUTATION,
        ),
        (r"^aten::", NORMALISATION_ELEMENTWISE),
    )
)


def class_of_kernel(name: str) -> str:
    """The class of a kernel, a copy or a set on a GPU by its name."""
    if _COMMUNICATES.match(name):
        return class_of_collective(name.partition("(")[0]) or OTHER_COMMUNICATION
    return _first(_KERNELS, name)


def class_of_operator(name: str) -> str:
    """The class of an operator on a CPU, or of gloo's work, by its name."""
    if _COMMUNICATES.match(name):
        return class_of_collective(name) or OTHER_COMMUNICATION
    return _first(_OPERATORS, name)


def class_of_collective(name: str) -> str | None:
    """The class of a collective by its name; None if the name does not tell it ("coalesced")."""
    plain = name.replace("_", "").lower()
    return next((kind for part, kind in _COLLECTIVES if part in plain), None)


def _first(patterns: tuple[tuple[re.Pattern[str], str], ...], name: str) -> str:
    return next((kind for pattern, kind in patterns if pattern.search(name)), OTHER_COMPUTATION)
