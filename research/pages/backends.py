"""The page of what each backend runs: ``reference/backends.md``, from the code that refuses cells.

Its rows are cells of two ranks along each axis that they name; tests/training/test_claims.py sees
to it that a row which says "yes" is one that a test has trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workflow_lib.cells import Sweep, expand_study, view_of
from workflow_lib.records import Backend, Cell, Degrees, Model, Training
from workflow_lib.study import Study, load_study
from workflow_lib.trainers import capabilities

ROOT = Path(__file__).parents[2]

TITLE = """\
# Backends

This page shows what DeepSpeed and torch (FSDP2 and `torch.distributed.pipelining`) run, and why
they refuse the rest. With `backend: auto` a cell gets DeepSpeed if it can run the cell, otherwise
torch. If neither can, the cell is *infeasible*, and the plan says why.
[Training](../explanation/training.md) explains what is trained.
"""

COMBINATIONS = """\
`workflow_lib/trainers/capabilities.py` decides each row. Degrees that are not named are 1. Other
options are those of the study: bf16, ZeRO-1, no overlap, no recomputation. EP distributes experts
over replicas, so it needs DP. *Interleaved* and *zero-bubble-v* have two chunks on each pipeline
rank; *uneven* has stages of different length.
"""

SWEEP = """\
The cells of `config/sweeps/parallelism.yaml`, which repeats the study's figure 4, as the planner
resolves them on each platform: the backend that runs a cell, or why it is infeasible.
"""

#: what a row's cell is where the row does not say otherwise
PLAIN = Training(
    zero_stage=1,
    micro_batch_size=1,
    global_batch_size=8,
    precision="bf16",
    recomputation="none",
    overlap=False,
    warmup_steps=1,
    measured_steps=1,
    learning_rate=1e-4,
    seed=1,
)


@dataclass(frozen=True)
class Combination:
    """A row: what it is called, and what its cell has that others do not."""

    name: str
    degrees: Degrees
    #: training options by name, those only that the row is about
    options: dict[str, Any] = field(default_factory=dict)
    #: the model has experts
    experts: bool = False

    def refusal(self, backend: Backend, study: Study) -> str | None:
        """Why the backend does not run it; None where it does."""
        name = "mixtral-tiny" if self.experts else "llama3-tiny"
        model: Model = study.models[name].record(name)
        routing: dict[str, Any] = {"routing": "dropless"} if self.experts else {}
        training = replace(PLAIN, backend=backend, **{**routing, **self.options})
        return capabilities.refusal(self.degrees, training, model)

    def claim(self, backend: Backend, study: Study) -> Combination | None:
        """What the page says that the backend runs: the row, less a precision that makes no
        difference to the answer; None where it is refused.
        """
        if self.options.get("precision") == "fp8":
            return self if self.refusal(backend, study) is None else None
        either = [
            replace(self, options={**self.options, "precision": precision})
            for precision in ("bf16", "fp32")
        ]
        if all(each.refusal(backend, study) is None for each in either):
            rest = {key: value for key, value in self.options.items() if key != "precision"}
            return replace(self, options=rest)
        return self if self.refusal(backend, study) is None else None

    def is_part_of(self, cell: Cell) -> bool:
        """Whether a cell has all that the row names, whatever else it has."""
        wanted, actual = self.degrees, cell.degrees
        axes = ("tp", "cp", "pp", "dp", "ep", "virtual_stages")
        return (
            all(getattr(actual, axis) > 1 for axis in axes if getattr(wanted, axis) > 1)
            and actual.schedule == wanted.schedule
            and (len(set(actual.stage_layers)) > 1 or not wanted.stage_layers)
            and (cell.model.experts > 0 or not self.experts)
            and all(getattr(cell.training, key) == value for key, value in self.options.items())
        )


def combinations() -> Iterator[tuple[str, list[Combination]]]:
    """The rows by section."""
    tp, pp, dp, ep = Degrees(tp=2), Degrees(pp=2), Degrees(dp=2), Degrees(dp=2, ep=2)
    pp_dp = Degrees(pp=2, dp=2)
    of_experts = {"experts": True}
    yield (
        "Degrees",
        [
            Combination("TP", tp),
            Combination("PP", pp),
            Combination("DP", dp),
            Combination("EP", ep, **of_experts),
            Combination("EP, two replicas of each expert", Degrees(dp=4, ep=2), **of_experts),
            Combination("TP × PP", Degrees(tp=2, pp=2)),
            Combination("TP × DP", Degrees(tp=2, dp=2)),
            Combination("TP × EP", Degrees(tp=2, dp=2, ep=2), **of_experts),
            Combination("PP × DP", pp_dp),
            Combination("PP × EP", Degrees(pp=2, dp=2, ep=2), **of_experts),
            Combination("TP × PP × DP", Degrees(tp=2, pp=2, dp=2)),
            Combination("TP × PP × EP", Degrees(tp=2, pp=2, dp=2, ep=2), **of_experts),
        ],
    )
    yield (
        "ZeRO",
        [
            Combination(f"{name} × ZeRO-{stage}{precision}", degrees, options, experts)
            for name, degrees, experts in (
                ("DP", dp, False),
                ("PP × DP", pp_dp, False),
                ("EP", ep, True),
            )
            for stage in range(4)
            for precision, options in (
                (("", {"zero_stage": stage}),)
                if stage
                else (
                    (", bf16", {"zero_stage": 0, "precision": "bf16"}),
                    (", fp32", {"zero_stage": 0, "precision": "fp32"}),
                )
            )
        ]
        + [Combination("TP × DP × ZeRO-3", Degrees(tp=2, dp=2), {"zero_stage": 3})],
    )
    yield (
        "Stages",
        [
            Combination("PP, uneven", Degrees(pp=2, stage_layers=(1, 3))),
            Combination("PP, interleaved", Degrees(pp=2, virtual_stages=2)),
            Combination("PP × DP, interleaved", Degrees(pp=2, dp=2, virtual_stages=2)),
            Combination(
                "PP × DP × ZeRO-3, interleaved",
                Degrees(pp=2, dp=2, virtual_stages=2),
                {"zero_stage": 3},
            ),
            *(
                Combination(f"{name}, {each.schedule}{what}", replace(each, tp=tp, dp=dp), options)
                for each in (
                    Degrees(pp=2, schedule="zero-bubble"),
                    Degrees(pp=2, virtual_stages=2, schedule="zero-bubble-v"),
                )
                for name, tp, dp, what, options in (
                    ("PP", 1, 1, "", {}),
                    ("PP", 1, 1, ", overlap", {"overlap": True}),
                    ("PP × DP", 1, 2, ", overlap", {"overlap": True}),
                    ("TP × PP", 2, 1, ", overlap", {"overlap": True, "sequence_parallel": True}),
                )
            ),
        ],
    )
    sequence = {"sequence_parallel": True}
    yield (
        "Sequence parallelism",
        [
            Combination("TP", tp, sequence),
            Combination("TP × PP", Degrees(tp=2, pp=2), sequence),
            Combination("TP × DP × ZeRO-3", Degrees(tp=2, dp=2), {**sequence, "zero_stage": 3}),
            Combination("TP × EP", Degrees(tp=2, dp=2, ep=2), sequence, **of_experts),
        ],
    )
    yield (
        "Context parallelism",
        [
            Combination("CP", Degrees(cp=2)),
            Combination("CP × ZeRO-3", Degrees(cp=2), {"zero_stage": 3}),
            Combination("CP × DP", Degrees(cp=2, dp=2)),
            Combination("TP × CP, sequence parallelism", Degrees(tp=2, cp=2), sequence),
            Combination("CP × PP", Degrees(cp=2, pp=2)),
            Combination("CP, full recomputation", Degrees(cp=2), {"recomputation": "full"}),
            Combination("CP, compiled", Degrees(cp=2), {"compile": True}),
            Combination("CP, experts", Degrees(cp=2), **of_experts),
        ],
    )
    overlap = {"overlap": True}
    fp32 = {"precision": "fp32"}
    yield (
        "Overlap",
        [
            Combination("one GPU", Degrees(), overlap),
            Combination("DP × ZeRO-0, fp32", dp, {**overlap, **fp32, "zero_stage": 0}),
            Combination("DP × ZeRO-1, bf16", dp, {**overlap, "precision": "bf16", "zero_stage": 1}),
            Combination("DP × ZeRO-1, fp32", dp, {**overlap, **fp32, "zero_stage": 1}),
            Combination("DP × ZeRO-2", dp, {**overlap, "zero_stage": 2}),
            Combination("DP × ZeRO-3", dp, {**overlap, "zero_stage": 3}),
            Combination("TP", tp, {**overlap, "sequence_parallel": False}),
            Combination("TP, sequence parallelism", tp, {**overlap, **sequence}),
            Combination("PP", pp, overlap),
            Combination("PP × DP", pp_dp, overlap),
            Combination("PP, interleaved", Degrees(pp=2, virtual_stages=2), overlap),
            Combination("EP", ep, overlap, **of_experts),
        ],
    )
    yield (
        "Recomputation",
        [
            Combination(f"{name}, {kind}", degrees, {"recomputation": kind}, experts)
            for kind in ("full", "selective")
            for name, degrees, experts in (
                ("DP", dp, False),
                ("TP", tp, False),
                ("PP", pp, False),
                ("EP", ep, True),
            )
        ],
    )
    yield (
        "Compilation",
        [
            Combination(name, degrees, {"compile": True}, experts)
            for name, degrees, experts in (
                ("DP", dp, False),
                ("TP", tp, False),
                ("PP", pp, False),
                ("EP", ep, True),
            )
        ],
    )
    fp8 = {"precision": "fp8"}
    yield (
        "fp8",
        [
            Combination(name, degrees, {**fp8, **options}, experts)
            for name, degrees, options, experts in (
                ("one GPU", Degrees(), {}, False),
                *((f"DP × ZeRO-{stage}", dp, {"zero_stage": stage}, False) for stage in range(4)),
                ("DP × ZeRO-3, overlap", dp, {**overlap, "zero_stage": 3}, False),
                ("PP", pp, {}, False),
                ("PP × DP", pp_dp, {}, False),
                ("PP, interleaved", Degrees(pp=2, virtual_stages=2), {}, False),
                ("PP, zero-bubble", Degrees(pp=2, schedule="zero-bubble"), overlap, False),
                ("CP", Degrees(cp=2), {}, False),
                ("TP", tp, {}, False),
                ("EP", ep, {}, True),
                ("DP, full recomputation", dp, {"recomputation": "full"}, False),
                ("DP, selective recomputation", dp, {"recomputation": "selective"}, False),
                ("DP, compiled", dp, {"compile": True}, False),
                ("PP, compiled", pp, {"compile": True}, False),
                ("LoRA, DP", dp, {"workload": "lora", "lora_rank": 4}, False),
            )
        ],
    )
    balanced = {"routing": "balanced"}
    yield (
        "Routing",
        [
            Combination("balanced, DP", dp, balanced, **of_experts),
            Combination("balanced, TP", tp, balanced, **of_experts),
            Combination("balanced, PP", pp, balanced, **of_experts),
            Combination("balanced, EP", ep, balanced, **of_experts),
            Combination("balancing loss, EP", ep, {"balancing_loss": 0.01}, **of_experts),
            Combination("balancing loss, PP", pp, {"balancing_loss": 0.01}, **of_experts),
        ],
    )
    lora = {"workload": "lora", "lora_rank": 4}
    inference = {"workload": "inference", "generated_tokens": 12, "zero_stage": 0}
    yield (
        "Workloads",
        [
            Combination(f"{name}, {degree}", degrees, options, experts)
            for name, options in (("LoRA", lora), ("inference", inference))
            for degree, degrees, experts in (
                ("DP", dp, False),
                ("TP", tp, False),
                ("PP", pp, False),
                ("EP", ep, True),
            )
        ]
        + [
            Combination(f"LoRA, {degree}, compiled", degrees, {**lora, "compile": True})
            for degree, degrees in (("DP", dp), ("TP", tp), ("PP", pp), ("CP", Degrees(cp=2)))
        ],
    )


def answers(study: Study) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Section by section the rows of the page: the combination, and a backend's answer each."""
    for title, rows in combinations():
        yield (
            title,
            [
                (
                    row.name,
                    *(row.refusal(backend, study) or "yes" for backend in capabilities.BACKENDS),
                )
                for row in rows
            ],
        )


def sweep_rows(study: Study) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Platform by platform the cells of the parallelism sweep, and what becomes of them."""
    views, spec = expand_study(study), study.sweeps["parallelism"]
    for platform in spec.platforms:
        yield platform, _cells(views[view_of("parallelism", spec, platform)])


def _cells(sweep: Sweep) -> list[tuple[str, ...]]:
    return [
        (
            planned.cell.model.name,
            f"`{planned.cell.parallelism}`",
            str(planned.cell.training.zero_stage),
            planned.reason or planned.cell.training.backend,
        )
        for planned in sweep.cells
    ]


def the_study() -> Study:
    """The configuration that comes with the repository."""
    return load_study(ROOT / "config")
