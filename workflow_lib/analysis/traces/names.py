"""The names of kernels, operators and collectives, and the class that each name belongs to.

Sources of the names: PyTorch's ``ATen/native/cuda`` and Inductor's generated kernels; cuBLAS, cuDNN
and CUTLASS as they appear in traces of V100 to B200; Tensile, hipBLASLt, MIOpen and composable
kernels on MI210 to MI300; vLLM, SGLang, AITER and FBGEMM; NCCL's and RCCL's ``src/device``
(``ncclKernel_<collective>_…`` up to 2.18, then ``ncclDevKernel_…``; RCCL's one ``…_Generic`` kernel
serves every collective); ``torch/csrc/distributed/c10d/symm_mem``; NVSHMEM's and DeepEP's device
code; TransformerEngine's ``comm_gemm_overlap/userbuffers``; the names of collectives that
``torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp`` gives to ``record_param_comms``, and those of
``ProcessGroupGloo.cpp``.

A kernel is told by whole words of its own identifier, so a word in the type of an argument decides
nothing. The first word that is known decides: what a kernel is stands before what it does besides,
as in ``bmm_…_biasM_…_swiGlu``. A convolution is ``gemm`` if its kernel says that it is an implicit
GEMM, and else ``other_computation``.

A name is either C++ as a demangler writes it, or mangled by the Itanium C++ ABI
(https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling), or a plain identifier, as of Triton
and Tensile. Of a mangled name only the identifiers are read, which is less than demangling.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: what stands in a path without being a name of its own
_NO_NAME = re.compile(r"\(anonymous namespace\)|\{lambda|\[clone [^\]]*\]")
_PARTS = re.compile(r"[<>() :]|[^<>() :]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
#: of a mangled name: a literal, a substitution, or the length of an identifier
_MANGLED_PART = re.compile(r"L[a-z]n?\d+E|S[0-9A-Z]*_|(\d+)")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[0-9]+")


@dataclass(frozen=True)
class Name:
    """A kernel's name, taken apart."""

    #: namespaces and classes, and the kernel's own identifier last
    path: tuple[str, ...]
    #: all identifiers among the arguments of its template, in their order
    arguments: tuple[str, ...]

    @property
    def own(self) -> str:
        """The identifier of the kernel itself."""
        return self.path[-1] if self.path else ""


def words(identifier: str) -> list[str]:
    """The words of an identifier in lower case: ``cunn_SoftMaxForward`` is cunn, soft, max and
    forward."""
    return [word.lower() for word in _WORD.findall(identifier)]


def taken_apart(name: str) -> Name:
    """The parts of a kernel's name; without the type that it returns, and its parameters."""
    if name.startswith("_Z"):
        return _mangled(name)
    path: list[str] = []
    arguments: list[str] = []
    depth = parentheses = begun = 0
    for part in _PARTS.finditer(text := _NO_NAME.sub("", name)):
        mark = part[0]
        if depth and mark in "()":
            parentheses += 1 if mark == "(" else -1
        elif parentheses > 0:
            # There ``<`` and ``>`` may compare, as in ``enable_if<(width > 0)>``.
            continue
        elif mark == "<":
            begun = part.end() if depth == 0 else begun
            depth += 1
        elif mark == ">" and depth:
            depth -= 1
            if depth == 0:
                arguments = _IDENTIFIER.findall(text, begun, part.start())
        elif depth:
            continue
        elif mark == "(":
            break
        elif mark == " ":
            # What went before is the type that the kernel returns.
            path, arguments = [], []
        elif mark not in ":>)":
            path.append(mark)
    if depth:
        # The name was cut off within its template's arguments.
        arguments = _IDENTIFIER.findall(text, begun)
    return Name(tuple(path), tuple(arguments))


def _mangled(name: str) -> Name:
    nested = name.startswith("_ZN")
    path: list[str] = []
    arguments: list[str] = []
    parts = path
    at = 3 if nested else 2
    while at < len(name):
        part = _MANGLED_PART.match(name, at)
        if part and part[1]:
            at = part.end() + int(part[1])
            parts.append(name[part.end() : at])
            if not nested and parts is path:
                parts = arguments
        elif part:
            at = part.end()
        elif name[at] == "I":
            parts, at = arguments, at + 1
        elif parts is path and name[at] == "E":
            break
        else:
            at += 1
    return Name(tuple(path), tuple(arguments))


GEMM, ATTENTION, NORMALISATION_ELEMENTWISE = "gemm", "attention", "normalisation_elementwise"
OPTIMISER, OTHER_COMPUTATION = "optimiser", "other_computation"
UNKNOWN = "unknown"
MEMORY = "memory"
ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
ALL_TO_ALL, SEND_RECEIVE, BROADCAST = "all_to_all", "send_receive", "broadcast"
OTHER_COMMUNICATION = "other_communication"

COMPUTATION = (GEMM, ATTENTION, NORMALISATION_ELEMENTWISE, OPTIMISER, OTHER_COMPUTATION)
COMMUNICATION = (
    *(ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL),
    *(SEND_RECEIVE, BROADCAST, OTHER_COMMUNICATION),
)
#: every class, in the order of tables
CLASSES = (*COMPUTATION, UNKNOWN, MEMORY, *COMMUNICATION)

#: bytes of one element, by the name of c10's scalar type
ELEMENT_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "Float8_e4m3fnuz", "Float8_e5m2fnuz"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "QInt32", "Float", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}

#: words of a collective's name, joined by underscores → class
_COLLECTIVES = tuple(
    (re.compile(rf"(?:^|_)(?:{pattern})"), kind)
    for pattern, kind in (
        (r"all_?reduce|cross_device_reduce", ALL_REDUCE),
        (r"all_?gather", ALL_GATHER),
        (r"reduce_?scatter", REDUCE_SCATTER),
        (r"all_?to_?all", ALL_TO_ALL),
    )
)
#: the same, of names that are known to be of communication
_EXCHANGES = (
    *_COLLECTIVES,
    (re.compile(r"(?:^|_)i?(?:send|recv)"), SEND_RECEIVE),
    (re.compile(r"(?:^|_)broadcast"), BROADCAST),
)
#: what a kernel's identifier begins with that a library of communication made
_LIBRARY = re.compile(
    r"(?:nccl|rccl|msccl|mscclpp|nvshmemi?|rocshmem)(?=[A-Z_])|k?userbuffers_|multimem_"
)
#: namespaces of which every kernel communicates
_EXCHANGING_SCOPES = frozenset(("c10d", "nvshmem", "rocshmem", "mscclpp", "quickreduce"))
#: TransformerEngine's ``userbuffers_fp16_sum_inplace_gpu_rr_ag``, ``kuserbuffers_pushrecv`` …
_USERBUFFERS = (
    (re.compile(r"userbuffers.*_ag(?:_|$)"), ALL_GATHER),
    (re.compile(r"userbuffers.*_rs(?:_|$)"), REDUCE_SCATTER),
    (re.compile(r"userbuffers_(?:push|pull)"), SEND_RECEIVE),
    (re.compile(r"userbuffers.*_sum_inplace_gpu"), ALL_REDUCE),
)

#: what a whole name begins with → class
_WHOLE = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"Mem(?:cpy|set)\b|Copy(?:Host|Device)To|__amd_rocclr_(?:copy|fill)", MEMORY),
        # Inductor's kinds of kernels; what follows names every operator that was fused.
        (r"triton_for_", OPTIMISER),
        (r"triton_(?:poi|red|per|mix)_", NORMALISATION_ELEMENTWISE),
        (r"triton_tem_\w*(?:attention|flex)", ATTENTION),
        (r"triton_(?:tem|mm|bmm)_", GEMM),
    )
)
#: what a kernel's own identifier begins with → class, where its words do not tell or would mislead
_BEGINNINGS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"nvjet|Cijk_|splitKreduce|ReduceSplitK|reduce_1Block_|dotc?_kernel", GEMM),
        (r"kernel_grouped_conv_|fused_moe_kernel", GEMM),
        # cuDNN computes convolutions by an implicit GEMM, unless the name says Winograd.
        (r"\w*scudnn_winograd|(?:reduce_)?(?:dgrad|wgrad)_", OTHER_COMPUTATION),
        (r"\w*scudnn_", GEMM),
        (r"sage_fwd|reduce_segments|compute_dot_do_o|convert_dq_to_16bits", ATTENTION),
        (r"_?finalize|reshape_and_cache|store_kvcache|concat_and_cache", NORMALISATION_ELEMENTWISE),
        (r"SubTensorOpWith|scalePackedTensor", NORMALISATION_ELEMENTWISE),
        (r"gatherTopK|split_embedding_|Im2d2Col|im2col|fft\dd_|moe_align_", OTHER_COMPUTATION),
    )
)


def _by_word(*listed: tuple[str, str]) -> dict[str, str]:
    return {word: kind for kind, words_of in listed for word in words_of.split()}


_WORDS = _by_word(
    (OPTIMISER, "adam adamw adafactor lamb lars lion muon sgd rmsprop optimizer optimiser"),
    (ATTENTION, "flash fmha attention attn sdpa mha mla mqa"),
    (GEMM, "gemvx mm bmm addmm baddbmm matmul xmma mv addmv"),
    (
        NORMALISATION_ELEMENTWISE,
        "norm rms rmsnorm rmsnorm2d layernorm layernorm2d groupnorm bn welford moments gamma"
        " statistics elementwise epilogue reduce soft softmax logsumexp entropy loss nll dropout"
        " fill copy cat concat pad gather scatter index indices transpose permute clamp cast"
        " quant quantize dequant dequantize gelu silu swiglu relu elu tanh sigmoid act activation"
        " rope rotary embedding bias scal distribution nchw nhwc cnhw",
    ),
    (
        OTHER_COMPUTATION,
        "sort radix scan topk histogram unique nonzero searchsorted cumsum winograd fft dgrad wgrad"
        " pool routing bitonic offsets upsample bounds spin",
    ),
)
#: a kind of GEMM as cuBLAS, CUTLASS and MIOpen write it, as in ``s1688gemm`` and ``sgemm``
_GEMM_WORD = re.compile(r"[a-z]{0,3}\d*gem[mv][a-z0-9]{0,2}|[a-z]\d+(?:fprop|dgrad|wgrad)")
#: libraries of sorts and scans, by namespace
_SORTING_SCOPES = frozenset(("cub", "rocprim", "thrust", "hipcub"))
#: own identifiers that tell nothing, while the scopes or the arguments of the template do
_WRAPPERS = frozenset(("Kernel", "Kernel2", "kernel", "device_kernel", "kentry", "globalKernel"))
_LIST_KERNEL = "multi_tensor_apply_kernel"
_LIST_COPIES = frozenset(("Copy", "CopyFunctor"))

_EXCHANGE_OPERATOR = re.compile(
    r"(?:gloo|nccl|mpi|ucc):|(?:c10d|_c10d_functional|symm_mem)::|record_param_comms$"
)
#: operators that launch no kernel of their own, and nodes of autograd, whose operators do
_NO_WORK = re.compile(
    r"(?:aten::)?(?:empty|as_strided|view|t|transpose|expand|detach|select|slice|resize|item|lift"
    r"|reshape|_reshape_alias|result_type|resolve|permute|unsqueeze|squeeze|flatten|unbind|split"
    r"|chunk|narrow|alias|set|to|_local_scalar_dense|_has_compatible_shallow_copy_type|unfold"
    r"|unflatten|is_nonzero|_unsafe_view|numpy_T|new_empty|movedim|swapaxes|diagonal|is_pinned"
    r"|pin_memory|_pin_memory|record_stream)(?:_like|_strided|_conj|_neg|_fresh|_dim|_)?$"
    r"|autograd::engine::|torch::autograd::|\w+Backward\d*$"
)
#: operators that one of their words would mislead about
_OPERATORS = (
    (re.compile(r"aten::(?:copy_|_to_copy|clone|fill_|zero_|contiguous)$"), MEMORY),
    (re.compile(r"aten::(?:v?dot|inner|outer|einsum)$"), GEMM),
)
#: words of operators beside those of kernels
_OPERATOR_WORDS = _WORDS | _by_word(
    (GEMM, "linear"),
    (
        NORMALISATION_ELEMENTWISE,
        "add sub rsub mul div neg pow exp exp2 log log2 log1p sqrt rsqrt reciprocal abs sin cos max"
        " min amax amin maximum minimum mean sum prod var std all any eq ne lt le gt ge isnan"
        " isfinite isinf where logical bitwise not floor ceil round trunc remainder fmod erf sign"
        " addcmul addcdiv lerp hardtanh leaky threshold masked mse smooth huber binary kl uniform"
        " normal bernoulli random exponential arange linspace ones zeros full eye tril triu stack"
        " repeat roll flip zero square digamma lgamma softplus mish glu hardswish hardsigmoid"
        " linalg one nan argmax argmin logsigmoid clone contiguous",
    ),
    (
        OTHER_COMPUTATION,
        "cumprod msort multinomial bincount adaptive avg conv conv1d conv2d conv3d convolution"
        " pool2d",
    ),
)


def class_of_kernel(name: str) -> str:
    """The class of a kernel, a copy or a set on a GPU by its name; UNKNOWN if that does not
    tell."""
    for pattern, kind in _WHOLE:
        if pattern.match(name):
            return kind
    parts = taken_apart(name)
    if exchange := _exchange(parts, "_".join(words(parts.own))):
        return exchange
    if parts.own == _LIST_KERNEL:
        # Over lists of parameters gradients are scaled and clipped, and parameters updated.
        return NORMALISATION_ELEMENTWISE if _LIST_COPIES & {*parts.arguments} else OPTIMISER
    if not _SORTING_SCOPES.isdisjoint(parts.path):
        return OTHER_COMPUTATION
    wraps = parts.own in _WRAPPERS
    for identifier in (*parts.path, *parts.arguments) if wraps else (parts.own,):
        for pattern, kind in _BEGINNINGS:
            if pattern.match(identifier):
                return kind
        if known := _first_known(words(identifier), _WORDS):
            return known
    return UNKNOWN


def class_of_operator(name: str) -> str:
    """The class of an operator on a CPU, or of gloo's work, by its name; UNKNOWN if that does not
    tell."""
    if _EXCHANGE_OPERATOR.match(name):
        return class_of_collective(name) or OTHER_COMMUNICATION
    if _NO_WORK.match(name):
        return OTHER_COMPUTATION
    for pattern, kind in _OPERATORS:
        if pattern.match(name):
            return kind
    own = words(name.rpartition("::")[2])
    if "foreach" in own[:2] and "copy" not in own:
        return OPTIMISER
    return _first_known(own, _OPERATOR_WORDS) or UNKNOWN


def class_of_launched(operator: str) -> str:
    """The class of a kernel whose own name tells nothing, by the operator that launched it."""
    if _NO_WORK.match(operator) and not operator.startswith("autograd::"):
        return UNKNOWN
    kind = class_of_operator(operator)
    return NORMALISATION_ELEMENTWISE if kind == MEMORY else kind


def class_of_collective(name: str) -> str | None:
    """The class of a collective by its name; None if the name does not tell it ("coalesced")."""
    plain = "_".join(words(name))
    return next((kind for pattern, kind in _EXCHANGES if pattern.search(plain)), None)


def _exchange(parts: Name, own: str) -> str | None:
    """The class of a kernel that communicates; None of any other."""
    if "deep_ep" in parts.path:
        # Dispatch and combine are the two halves of an all-to-all.
        halves = "dispatch" in own or "combine" in own
        if "layout" in parts.path:
            return OTHER_COMPUTATION
        return ALL_TO_ALL if halves else OTHER_COMMUNICATION
    if _LIBRARY.match(parts.own) or not _EXCHANGING_SCOPES.isdisjoint(parts.path):
        tried = (*_USERBUFFERS, *_EXCHANGES)
        return next((kind for pattern, kind in tried if pattern.search(own)), OTHER_COMMUNICATION)
    return next((kind for pattern, kind in _COLLECTIVES if pattern.search(own)), None)


def _first_known(own: list[str], known: dict[str, str]) -> str | None:
    for word in own:
        if kind := known.get(word):
            return kind
        if _GEMM_WORD.fullmatch(word):
            return GEMM
    return None
