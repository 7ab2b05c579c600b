"""Steps with one collective each, whose bytes a rank counts as it does in training."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

#: bytes that a rank sends, and receives, for a message of 1 B over n ranks. Rings pass (n − 1)/n of
#: it on, an all-reduce twice (Patarasuk and Yuan 2009); of an all-to-all each rank keeps 1/n.
SHARES: Mapping[str, Callable[[int], float]] = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: (n - 1) / n,
    "all-to-all": lambda n: (n - 1) / n,
    "send/recv": lambda n: 1.0,
}
#: rings, as the arithmetic has them, and not what NVSwitch adds up itself
_NCCL = {"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "0"}
_TIMEOUT = datetime.timedelta(seconds=60)

Row = dict[str, Any]


def expected_bytes(collective: str, message_bytes: int, ranks: int) -> float:
    """What a rank sends, and receives, in one step."""
    return SHARES[collective](ranks) * message_bytes


class LinkSteps:
    """A process for each GPU; all the collectives for each number of steps, then steady steps."""

    def __init__(
        self,
        ranks: int,
        message_bytes: int,
        steps: tuple[int, ...],
        steady_s: float,
        uuids: tuple[str, ...] = (),
    ) -> None:
        """Start them; ``uuids`` are of the GPUs that are counted where ranks run on the CPU."""
        self._directory = tempfile.TemporaryDirectory()
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(ranks, context)
        meet = str(Path(self._directory.name) / "meet")
        plan = (ranks, meet, message_bytes, steps, steady_s, uuids)
        self._work = [self._pool.submit(_rank, rank, *plan) for rank in range(ranks)]

    def done(self, timeout_s: float) -> bool:
        """Whether all ranks have ended, or one has failed; waits for that at most so long."""
        return not wait(self._work, timeout_s, FIRST_EXCEPTION).not_done

    def results(self) -> tuple[list[Row], tuple[float, float]]:
        """A row for each rank, collective and number of steps; and when steady steps began and
        ended, in Unix time. Raises what a rank raised.
        """
        try:
            found = [rank.result() for rank in self._work]
        finally:
            self._pool.shutdown(cancel_futures=True)
            self._directory.cleanup()
        return [row for rows, _ in found for row in rows], found[0][1]


def _rank(
    rank: int,
    ranks: int,
    meet: str,
    message_bytes: int,
    steps: tuple[int, ...],
    steady_s: float,
    uuids: tuple[str, ...],
) -> tuple[list[Row], tuple[float, float]]:
    for name, value in _NCCL.items():
        os.environ.setdefault(name, value)
    import torch
    import torch.distributed as dist

    from workflow_lib.trainers.native.device import Device
    from workflow_lib.trainers.native.links import LinkCounting

    if uuids:
        torch.set_num_threads(1)
        device = Device(torch.device("cpu"), "CPU", rank, "gloo", uuids[rank])
    else:
        gpu = torch.device("cuda", rank)
        torch.cuda.set_device(gpu)
        uuid = str(torch.cuda.get_device_properties(gpu).uuid)
        uuid = f"GPU-{uuid.removeprefix('GPU-')}"
        device = Device(gpu, torch.cuda.get_device_name(gpu), rank, "nccl", uuid)
    dist.init_process_group(
        device.backend,
        init_method=f"file://{meet}",
        rank=rank,
        world_size=ranks,
        timeout=_TIMEOUT,
        device_id=None if uuids else device.torch,
    )
    size = 64 if uuids else 8192
    weights = torch.randn(size, size, device=device.torch, dtype=torch.bfloat16)
    exchange = exchanges(dist.group.WORLD, message_bytes, device.torch)

    def step(collective: str) -> None:
        for _ in range(4):
            torch.mm(weights, weights)
        exchange[collective]()
        device.synchronise()

    rows: list[Row] = []
    for collective in SHARES:
        for count in steps:
            counting = LinkCounting(rank, device, 1)
            for number in range(1 + count):
                if number == counting.first_step:
                    counting.begin()
                step(collective)
            found = counting.end(1 + count)
            row: Row = {"collective": collective, "steps": count, "rank": rank}
            if found.before is None or found.after is None:
                rows.append({**row, "sent": None, "received": None, "reason": found.reason})
                continue
            sent = found.after.sent_bytes - found.before.sent_bytes
            received = found.after.received_bytes - found.before.received_bytes
            rows.append(
                {**row, "sent": sent / found.steps, "received": received / found.steps}
                | {"reason": ""}
            )
    began_s = time.time()
    _steady(step, steady_s, device.torch)
    span = (began_s, time.time())
    dist.barrier()
    dist.destroy_process_group()
    return rows, span


def _steady(step: Callable[[str], None], seconds: float, device: Any) -> None:
    """Steps with an all-reduce until the first rank says that it is enough."""
    import torch
    import torch.distributed as dist

    ends_s = time.monotonic() + seconds
    going = torch.ones(1, device=device)
    while going.item():
        for _ in range(10):
            step("all-reduce")
        going.fill_(float(time.monotonic() < ends_s))
        dist.broadcast(going, 0)


def exchanges(group: Any, message_bytes: int, device: Any) -> Mapping[str, Callable[[], object]]:
    """Each collective of SHARES over the ranks of a process group, on a message in bf16."""
    import torch
    import torch.distributed as dist

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    whole = torch.zeros(message_bytes // 2, device=device, dtype=torch.bfloat16)
    other, part = torch.zeros_like(whole), torch.zeros_like(whole[: whole.numel() // ranks])
    following, preceding = (
        dist.get_global_rank(group, (rank + step) % ranks) for step in (1, ranks - 1)
    )

    def shift() -> None:
        """Everybody to the next rank, around."""
        sending = dist.P2POp(dist.isend, whole, following, group)
        receiving = dist.P2POp(dist.irecv, other, preceding, group)
        for work in dist.batch_isend_irecv([sending, receiving]):
            work.wait()

    return {
        "all-reduce": lambda: dist.all_reduce(whole, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(whole, part, group=group),
        "reduce-scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "all-to-all": lambda: dist.all_to_all_single(other, whole, group=group),
        "send/recv": shift,
    }
