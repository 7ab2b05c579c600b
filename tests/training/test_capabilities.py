import pytest

from tests.training.cells import named
from workflow_lib.trainers.capabilities import refusal, with_backend

#: cells that cannot run, and what the reason names
REFUSED = {
    "deepspeed pp2 zero3": "ZeRO-0 and 1",
    "deepspeed pp2 zero2": "ZeRO-0 and 1",
    "deepspeed dp2 zero4": "0 to 3",
    "deepspeed dp2 zero0 bf16": "zero_stage 1",
    "deepspeed pp2 dp2 overlap": "overlap with PP",
    "deepspeed overlap": "overlap: false",
    "deepspeed tp2 overlap": "sequence_parallel: true",
    "deepspeed tp2 length63 sequence": "cut in 2",
    "deepspeed dp2 zero0 overlap": "zero_stage 2 or",
    "deepspeed dp2 overlap bf16": "zero_stage 2 or",
    "deepspeed tp4": "2 key and",
    "deepspeed tp2 gpt multiple1": "vocabulary_multiple",
    "deepspeed pp8": "8 pipeline stages",
    "deepspeed pp2 stages1,2": "3 layers",
    "deepspeed pp2 stages4,0": "[4, 0]",
    "deepspeed pp1x2": "virtual_stages 1",
    "deepspeed pp2x2": "interleaved schedule",
    "deepspeed compiled": "backend: torch",
    "torch pp2x2 batch3": "micro_batch_size",
    "deepspeed pp2 zero-bubble overlap": "only 1F1B",
    "torch pp1 zero-bubble": "larger pp",
    "torch pp2 zero-bubble": "overlap: true",
    "torch tp2 pp2 zero-bubble sequence overlap": "tp 1",
    "torch pp2 zero-bubble mixtral balanced overlap": "dense model",
    "torch pp2 zero-bubble full overlap": "recomputation: none",
    "torch pp2 zero-bubble compiled overlap": "compile: false",
    "torch pp2 zero-bubble zero2 overlap": "zero_stage 0 or",
    "torch pp2 zero-bubble lora overlap": "workload lora",
    "torch pp2 zero-bubble batch3 overlap": "micro_batch_size",
    "torch pp2x2 zero-bubble-v batch2 overlap": "global batch",
    "torch pp2 zero-bubble-v overlap": "virtual_stages: 2",
    "deepspeed cp2": "backend: torch",
    "torch cp3 overlap": "6 chunks",
    "torch tp2 cp32 sequence overlap": "128 chunks",
    "torch cp2 mixtral balanced overlap": "dense model",
    "deepspeed ep2 llama": "ep 1",
    "deepspeed ep8": "4 experts",
    "deepspeed tp2 dp1 ep2": "must divide DP",
    "deepspeed ep2 zero3": "EP 2",
    "deepspeed fp8": "backend: torch",
    "torch fp8 lora": "workload lora",
    "torch fp8 inference": "workload inference",
    "torch fp8 mixtral balanced": "experts",
    "torch fp8 tp2": "tp 1",
    "torch fp8 pp2 zero-bubble overlap": "schedule: 1f1b",
    "torch fp8 ffn200": "200 feed-forward",
    "torch fp8 length72": "72 tokens",
    "torch inference tp2 mixtral tokens64": "1 to 63",
    "torch inference tp2 mixtral tokens0": "1 to 63",
    "torch inference tp2 mixtral sequence": "sequence_parallel: false",
    "torch inference tp2 mixtral balanced": "routing: dropless",
    "torch inference tp2 mixtral zero3": "zero_stage: 0",
    "deepspeed inference tp2 mixtral": "backend: torch",
    "torch inference tp2 mixtral graphs": "dense model",
    "torch inference pp2 graphs": "pp 1",
    "torch inference mixtral graphs": "dense model",
}
#: cells that run although they are near to those that do not
ACCEPTED = [
    "deepspeed tp2 pp2 zero0 bf16",
    "torch inference dp2 graphs",
    "torch inference tp2 graphs",
    "torch inference tp2 mixtral tokens63",
]


def refusal_of(name):
    one = named(name)
    return refusal(one.degrees, one.training, one.model)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_run_is_refused_with_a_remedy(name):
    _, remedy = refusal_of(name).split("; ", maxsplit=1)

    assert REFUSED[name] in refusal_of(name)
    assert remedy


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_can_run_is_not_refused(name):
    assert refusal_of(name) is None


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("dp2 fp8", "torch"),
        ("pp2 zero2", "torch"),
        ("pp2 zero3", "torch"),
        ("dp2 zero3", "deepspeed"),
    ],
)
def test_auto_takes_torch_where_deepspeed_cannot_run_a_cell(name, backend):
    one = named(name)

    assert with_backend(one.degrees, one.training, one.model, "auto").backend == backend
