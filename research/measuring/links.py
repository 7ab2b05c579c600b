"""Bytes over NVLink, counted by the driver, against the arithmetic of an all-reduce."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from research.measuring.polling import field_value, open_handles

#: sent and received payload, in KiB, of one link or of all
_FIELDS = (138, 139)
_ALL_LINKS = 0xFFFFFFFF
_LINKS = 18
_KIB = 1024


def ring_bytes(size_bytes: int, ranks: int) -> float:
    """What each rank of a ring sends, and receives, in an all-reduce of ``size_bytes``.

    Reduce-scatter and all-gather pass (n − 1)/n of it on, each (Patarasuk and Yuan 2009).
    """
    return 2 * (ranks - 1) / ranks * size_bytes


def all_reduce_counts(
    worlds: Sequence[int],
    size_bytes: int,
    repeats: int,
    algorithm: str | None,
    device: str = "cuda",
    timeout_s: float = 120.0,
) -> list[dict[str, Any]]:
    """All-reduces over the first 2, 3, … GPUs, in a process each; a row for each rank of each.

    A row has the bytes that the driver counted as sent and received over all links, and over each
    where links are counted apart; null with a reason where there is no count. Raises RuntimeError.
    """
    context = multiprocessing.get_context("spawn")
    ranks = max(worlds)
    with tempfile.TemporaryDirectory() as directory:
        ends, processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe(duplex=False)
            plan = (list(worlds), size_bytes, repeats, algorithm, device)
            process = context.Process(
                target=_rank,
                args=(rank, ranks, str(Path(directory) / "meet"), plan, theirs),
                daemon=True,
            )
            process.start()
            theirs.close()
            ends.append(ours)
            processes.append(process)
        try:
            return _collect(ends, timeout_s)
        finally:
            for process in processes:
                process.join(5)
                if process.is_alive():
                    process.kill()
                    process.join()


def _collect(ends: list[Connection], timeout_s: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    waiting, deadline = list(ends), time.monotonic() + timeout_s
    while waiting:
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise RuntimeError(f"an all-reduce has not ended within {timeout_s:.0f} s")
        for end in ready:
            assert isinstance(end, Connection)
            try:
                good, value = end.recv()
            except EOFError:
                raise RuntimeError("a rank died; see its message above") from None
            if not good:
                raise RuntimeError(f"a rank failed:\n{value}")
            rows += value
            waiting.remove(end)
    return sorted(rows, key=lambda row: (row["ranks"], row["rank"]))


def _rank(rank: int, ranks: int, meet: str, plan: tuple[Any, ...], end: Connection) -> None:
    try:
        end.send((True, _reduce(rank, ranks, meet, *plan)))
    except Exception:  # handed to the one who asked, with all that is known of it
        end.send((False, traceback.format_exc()))


def _reduce(
    rank: int,
    ranks: int,
    meet: str,
    worlds: list[int],
    size_bytes: int,
    repeats: int,
    algorithm: str | None,
    device_type: str,
) -> list[dict[str, Any]]:
    if algorithm is not None:
        os.environ["NCCL_ALGO"] = algorithm
    import torch
    import torch.distributed as dist

    nvml, handles = open_handles()
    cuda = device_type == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{meet}", rank=rank, world_size=ranks
    )
    data = torch.ones(size_bytes // 2, dtype=torch.bfloat16, device=device)

    def settled() -> None:
        if cuda:
            torch.cuda.synchronize()
        time.sleep(0.3)  # counters may be renewed a tenth of a second later

    rows = []
    for count in worlds:
        group = dist.new_group(list(range(count)))
        if rank < count:
            dist.all_reduce(data, group=group)  # connects
            settled()
            before, counted_s = link_bytes(nvml, handles[rank]), time.monotonic()
            dist.all_reduce(data[:1], group=group)  # nobody begins before all have counted
            started = time.monotonic()
            for _ in range(repeats):
                dist.all_reduce(data, group=group)
            if cuda:
                torch.cuda.synchronize()
            took_s = time.monotonic() - started
            dist.all_reduce(data[:1], group=group)  # nobody counts before all have ended
            settled()
            after = link_bytes(nvml, handles[rank])
            rows.append(
                {
                    "ranks": count,
                    "rank": rank,
                    "algorithm": algorithm or "default",
                    "expected_bytes": repeats * ring_bytes(size_bytes, count),
                    "all_reduce_s": took_s / repeats,
                    "counted_over_s": time.monotonic() - counted_s,
                    **_increase(before, after),
                }
            )
            data.fill_(1.0)
        dist.barrier(device_ids=[rank] if cuda else None)
    dist.destroy_process_group()
    return rows


Counts = dict[str, list[int] | str]


def link_bytes(nvml: Any, handle: Any) -> Counts:
    """Bytes sent and received: over all links, and over each; a message in place of a count."""
    counts: Counts = {}
    for name, scopes in (("all", [_ALL_LINKS]), *((str(i), [i]) for i in range(_LINKS))):
        try:
            fields = nvml.nvmlDeviceGetFieldValues(
                handle, [(field, scope) for field in _FIELDS for scope in scopes]
            )
            counts[name] = [int(field_value(nvml, field)) * _KIB for field in fields]
        except nvml.NVMLError as error:
            counts[name] = str(error)
    return counts


def _increase(before: Counts, after: Counts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, first in before.items():
        last = after[name]
        if isinstance(first, str) or isinstance(last, str):
            found[name] = {"reason": first if isinstance(first, str) else last}
        else:
            found[name] = {"sent": last[0] - first[0], "received": last[1] - first[1]}
    links = [found.pop(str(i)) for i in range(_LINKS)]
    counted = [link for link in links if "sent" in link]
    return {
        "all_links": found["all"],
        "links": links,
        "links_counted": len(counted),
        "links_sent": sum(link["sent"] for link in counted) if counted else None,
        "links_received": sum(link["received"] for link in counted) if counted else None,
    }
