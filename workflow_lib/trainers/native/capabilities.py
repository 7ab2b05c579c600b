"""What the model cannot run, whatever steps it, and what torch cannot step.

The planner uses this module before anything is submitted, so it imports only the standard library.
tests/training/test_equality.py checks each claim by a run.
"""

from __future__ import annotations

from collections.abc import Iterator

from workflow_lib.records.degrees import Degrees
from workflow_lib.records.model import Model
from workflow_lib.records.training import Training

#: each side of an 8-bit matrix is a multiple of this (the documentation of cublasLtMatmul)
FLOAT8_MULTIPLE = 16


def of_model(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    """Why the model cannot run in this layout, whatever steps it, and what to change."""
    yield from _indivisible(degrees, training, model)
    yield from _stages(degrees, model)
    yield from _experts(degrees, model)
    yield from _context(degrees, training, model)
    yield from _workload(degrees, training, model)
    yield from _cuda_graphs(degrees, training, model)
    yield from _float8(degrees, training, model)
    yield from _inert_overlap(degrees, training)


def of_torch(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    """Why torch cannot step the model in this layout, and what to change."""
    if training.workload == "inference":
        return
    pp, micro_batches = degrees.pp, training.micro_batches(degrees.dp)
    if degrees.schedule != "1f1b":
        yield from _zero_bubble(degrees, training, model)
    elif degrees.virtual_stages > 1 and micro_batches % pp:
        yield (
            f"virtual stages with {micro_batches} micro-batches on PP {pp}: the interleaved "
            "schedule supports only whole rounds of PP micro-batches (arXiv 2104.04473, section "
            "2.2.2); use another micro_batch_size"
        )


def _indivisible(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    for count, what in (
        (model.kv_heads, "key and value heads"),
        (model.attention_heads, "attention heads"),
        (model.ffn_hidden_size, "feed-forward columns"),
        (model.padded_vocabulary_size, "vocabulary rows"),
    ):
        if count % degrees.tp:
            yield (
                f"TP {degrees.tp}: {model.name} has {count} {what}, which {degrees.tp} does not "
                "divide; use a TP that does"
                + (", or another vocabulary_multiple" if what.startswith("vocabulary") else "")
            )
    if training.sequence_parallel and model.sequence_length % degrees.tp:
        yield (
            f"TP {degrees.tp} with sequence parallelism: {model.name}'s sequences of "
            f"{model.sequence_length} tokens cannot be cut in {degrees.tp}; use a TP that divides "
            "them, or sequence_parallel: false"
        )
    if training.zero_stage not in (0, 1, 2, 3):
        yield f"ZeRO-{training.zero_stage}: the stages are 0 to 3; use one of them"


def _stages(degrees: Degrees, model: Model) -> Iterator[str]:
    stages = degrees.stages
    if degrees.virtual_stages > 1 and degrees.pp == 1:
        yield (
            f"{degrees.virtual_stages} virtual stages with PP 1: there is no pipeline to "
            "interleave; use virtual_stages 1, or a larger pp"
        )
    if model.layers < stages:
        yield (
            f"{stages} pipeline stages: {model.name} has only {model.layers} layers, and each "
            "stage needs one; use fewer stages"
        )
    given = degrees.stage_layers
    if given and min(given) < 1:
        yield f"stage_layers {list(given)}: each stage needs a layer; use at least 1 everywhere"
    if given and (len(given) != stages or sum(given) != model.layers):
        yield (
            f"stage_layers has {len(given)} stages with {sum(given)} layers, but the cell has "
            f"{stages} stages and {model.name} {model.layers} layers; make them agree"
        )


def _experts(degrees: Degrees, model: Model) -> Iterator[str]:
    ep = degrees.ep
    if ep == 1:
        return
    if model.experts == 0:
        yield f"EP {ep}: {model.name} has no experts; use ep 1"
    elif model.experts % ep:
        yield f"EP {ep}: {model.name} has {model.experts} experts; use an EP that divides them"
    if degrees.dp % ep:
        yield f"EP {ep} with DP {degrees.dp}: experts are spread over replicas; EP must divide DP"


def _context(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    cp = degrees.cp
    if cp == 1:
        return
    chunks = 2 * cp * (degrees.tp if training.sequence_parallel else 1)
    if model.sequence_length % chunks:
        product = "2 · cp · tp" if training.sequence_parallel else "2 · cp"
        yield (
            f"CP {cp}: {model.name}'s sequences of {model.sequence_length} tokens cannot be cut in "
            f"{chunks} chunks, two for each rank; use a cp for which {product} divides them"
        )
    if model.experts:
        yield (
            f"CP {cp}: {model.name} has experts, whose load and losses are counted for whole "
            "sequences; use cp 1, or a dense model"
        )


def _workload(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    if training.workload == "lora" and training.lora_rank < 1:
        yield f"workload lora with lora_rank {training.lora_rank}: use at least 1"
    if training.workload != "inference":
        return
    generated = training.generated_tokens
    if not 0 < generated < model.sequence_length:
        yield (
            f"generated_tokens {generated}: a sequence of {model.name} has "
            f"{model.sequence_length} tokens, of which at least one is generated and one is the "
            f"prompt; use 1 to {model.sequence_length - 1}"
        )
    if training.sequence_parallel:
        yield (
            "sequence parallelism with workload inference: there is one token at a time, which "
            "cannot be cut; use sequence_parallel: false"
        )
    if training.routing == "balanced":
        yield (
            "balanced routing with workload inference: experts would drop tokens, different "
            "ones for each micro_batch_size, so layouts would generate different text; use "
            "routing: dropless"
        )
    for given, what, remedy in (
        (training.zero_stage, f"ZeRO-{training.zero_stage}", "zero_stage: 0"),
        (training.recomputation != "none", "recomputation", "recomputation: none"),
        (training.overlap, "overlap", "overlap: false"),
        (training.compile, "compile", "compile: false"),
        (degrees.virtual_stages > 1, "virtual stages", "virtual_stages: 1"),
        (degrees.cp > 1, f"CP {degrees.cp}", "cp 1"),
        (degrees.schedule != "1f1b", f"schedule {degrees.schedule}", "schedule: 1f1b"),
    ):
        if given:
            yield (
                f"{what} with workload inference: there are no gradients, so the cell would run "
                f"exactly as without it; use {remedy}"
            )


def _cuda_graphs(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    if not training.cuda_graphs:
        return
    remedy = "use cuda_graphs: false"
    if degrees.pp > 1:
        yield (
            f"cuda_graphs with PP {degrees.pp}: the host receives what stages send, outside "
            f"of a graph; {remedy}, or pp 1"
        )
    if model.experts:
        yield (
            f"cuda_graphs with {model.name}: its experts get other numbers of rows for every "
            f"token, but a graph's shapes are fixed; {remedy}, or a dense model"
        )


def _float8(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    if training.precision != "fp8":
        return
    bf16 = "or precision: bf16"
    if training.workload != "pretrain":
        yield (
            f"fp8 with workload {training.workload}: only products of weights that train are in 8 "
            "bits; use workload pretrain, " + bf16
        )
    if training.backend != "torch":
        yield f"fp8: DeepSpeed's layers compute in bf16 or fp32; use backend: torch, {bf16}"
    if model.experts:
        yield (
            f"fp8: {model.name} has experts, whose grouped products are in bf16; use a dense "
            f"model, {bf16}"
        )
    if degrees.tp > 1:
        yield (
            f"fp8 with TP {degrees.tp}: a scale belongs to a whole row or matrix, which tensor "
            f"parallelism cuts; use tp 1, {bf16}"
        )
    if degrees.schedule != "1f1b":
        yield (
            f"fp8 with schedule {degrees.schedule}: torchao computes both gradients of a map at "
            f"once, so that each half of a backward pass would repeat them; use schedule: 1f1b, "
            f"{bf16}"
        )
    tokens = training.micro_batch_size * degrees.length_of_rank(model.sequence_length)
    for size, what in (
        (model.hidden_size, "hidden columns"),
        (model.query_size, "columns of queries"),
        (model.query_size + 2 * model.key_value_size, "columns of queries, keys and values"),
        (model.ffn_hidden_size, "feed-forward columns"),
        (tokens, "tokens in a micro-batch on a rank"),
    ):
        if size % FLOAT8_MULTIPLE:
            yield (
                f"fp8: {model.name} has {size} {what}, but GPUs multiply 8-bit matrices only "
                f"if their sides are multiples of {FLOAT8_MULTIPLE}; use another size, {bf16}"
            )


def _inert_overlap(degrees: Degrees, training: Training) -> Iterator[str]:
    if not training.overlap:
        return
    if degrees.world_size == 1:
        yield "overlap on one GPU: there is no communication to overlap; use overlap: false"
    if degrees.tp > 1 and not training.sequence_parallel:
        yield (
            f"overlap with TP {degrees.tp} but without sequence parallelism: its all-reduces have "
            "nothing to run beside; use sequence_parallel: true, or overlap: false"
        )


def _zero_bubble(degrees: Degrees, training: Training, model: Model) -> Iterator[str]:
    """Refusals of schedules that split the backward pass: first the gradients that another stage
    waits for, later those of weights. An operation that computes both at once would run twice."""
    pp, schedule = degrees.pp, f"schedule {degrees.schedule}"
    micro_batches = training.micro_batches(degrees.dp)
    remedy = "or schedule: 1f1b"
    if pp == 1:
        yield f"{schedule} with PP 1: there is no pipeline; use schedule: 1f1b, or a larger pp"
    if training.workload == "lora":
        yield (
            f"{schedule} with workload lora: frozen weights have no gradients to defer; use "
            "schedule: 1f1b"
        )
    for given, what, why, other in (
        (degrees.tp > 1, f"TP {degrees.tp}", "sums over its ranks", "tp 1"),
        (model.experts > 0, "experts", "their products", "a dense model"),
        (training.recomputation != "none", "recomputation", "layers", "recomputation: none"),
    ):
        if given:
            yield (
                f"{schedule} with {what}: the two halves of a backward pass would each repeat "
                f"{why}; use {other}, {remedy}"
            )
    if training.compile:
        yield (
            f"{schedule} with compile: torch cannot split a compiled backward pass; use compile: "
            f"false, {remedy}"
        )
    if training.zero_stage > 1:
        yield (
            f"{schedule} with ZeRO-{training.zero_stage}: it reduces gradients in each backward "
            "pass, where those of weights are not there yet; use zero_stage 0 or 1, " + remedy
        )
    if not training.overlap:
        yield (
            f"{schedule} without overlap: the schedule defers gradients of weights to run during "
            "sends, but without overlap sends are waited for first; use overlap: true, " + remedy
        )
    if degrees.schedule == "zero-bubble" and micro_batches % pp:
        yield (
            f"{schedule} with {micro_batches} micro-batches on PP {pp}: torch runs whole rounds of "
            "PP micro-batches; use another micro_batch_size"
        )
    if degrees.schedule == "zero-bubble-v":
        if degrees.virtual_stages != 2:
            yield (
                f"{schedule} with {degrees.virtual_stages} virtual stages: each rank has one chunk "
                "on the way up and one on the way back; use virtual_stages: 2"
            )
        if micro_batches < 2 * pp - 1:
            yield (
                f"{schedule} with {micro_batches} micro-batches on PP {pp}: it needs 2 · PP − 1 of "
                "them to fill the pipeline; use a larger global batch, or a smaller "
                "micro_batch_size"
            )
