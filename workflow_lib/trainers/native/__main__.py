"""Train one cell, with one process for each rank.

    python -m workflow_lib.trainers.native CELL_JSON [--tokens TOKENS_JSON] [--profile STEPS]

under ``srun`` or ``torch.distributed.run``. Everything is written beside CELL_JSON.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from workflow_lib.records.cell import Cell
from workflow_lib.records.contract import RankRecord
from workflow_lib.records.files import read_record
from workflow_lib.records.nodes import ClockReading, NodeClock
from workflow_lib.records.outcomes import Outcome
from workflow_lib.records.paths import (
    RunPaths,
    boot_id,
    code_sha256,
    job_id,
    node_name,
    rank_number,
)
from workflow_lib.records.reading import RecordError
from workflow_lib.records.whole_files import write_json
from workflow_lib.safety import private_directory
from workflow_lib.trainers.capabilities import refusal
from workflow_lib.trainers.native import launch as launching

#: The seconds after which a rank that waits for another gives up. In a pipeline ranks wait for most
#: of a step, and before it for each other's compiler.
COMMUNICATION_TIMEOUT_S = float(os.environ.get("TRIPTYCH_COMMUNICATION_TIMEOUT_S", "600"))
#: How long a rank that gave up stays before it ends, in seconds: its launcher then ends all other
#: ranks, which may still report an error.
_LAST_WORDS_S = 5.0


def main(arguments: list[str] | None = None) -> int:
    """Train a cell. Returns the exit code: 0, or 1 after an error, which is recorded by then."""
    parser = argparse.ArgumentParser(
        prog="python -m workflow_lib.trainers.native", description="Train one cell on this rank."
    )
    parser.add_argument("cell", type=Path, help="cell.json of the run; its directory is the run's")
    parser.add_argument("--tokens", type=Path, help="tokens.json, where the cell trains on text")
    parser.add_argument(
        "--profile",
        type=int,
        default=0,
        metavar="STEPS",
        help="train only so many steps after the warm-up, and leave a trace of them",
    )
    options = parser.parse_args(arguments)
    try:
        cell = read_record(options.cell, Cell)
    except (RecordError, FileNotFoundError) as error:
        # Without a cell this may not be a run's directory, so nothing is written to it.
        print(f"training: {error}", file=sys.stderr)
        return 1
    paths = RunPaths(options.cell.resolve().parent)
    progress = Progress()
    try:
        _run(cell, options.tokens, options.profile, paths, progress)
    except Exception as error:
        # Any error has to be on disk before this process ends.
        _report(paths, progress, error, cell)
        return 1
    return 0


@dataclass
class Progress:
    """The phase of this process, for the record of an error."""

    rank: int = field(default_factory=rank_number)
    phase: str = "setup"

    def enter(self, phase: str) -> None:
        """Record that a phase begins."""
        self.phase = phase


def _limit_threads(ranks: int) -> None:
    """Share the cores among the ranks, before any library starts its threads. OMP_NUM_THREADS stays
    as it is if it is set: torchrun sets it to 1 for several ranks on a node."""
    share = max(1, len(os.sched_getaffinity(0)) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(share))


def _keep_compiled_code_private() -> None:
    """Make torch keep compiled layers in a directory that only this user can write. By default
    torch unpickles what it finds below /tmp, whoever put it there. Raises OSError."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        cache = private_directory(Path(tempfile.gettempdir()), "triptych-compiled")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache)
    # It keeps headers for C++ below /tmp all the same.
    os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")


def _report(paths: RunPaths, progress: Progress, error: Exception, cell: Cell) -> None:
    from workflow_lib.trainers.native.failures import describe

    record = describe(progress.rank, progress.phase, error, cell)
    where = f"see {paths.rank_error(record.rank)}"
    try:
        write_json(paths.rank_error(record.rank), record)
    except OSError as unwritten:
        # The file system may be full; the log may still take it.
        where = f"not written: {unwritten}\n{record.traceback}"
    print(
        f"rank {record.rank}: {record.outcome.value} in {record.phase}: {record.message} ({where})",
        file=sys.stderr,
        flush=True,
    )
    if record.outcome is Outcome.COMMUNICATION_TIMEOUT:
        time.sleep(_LAST_WORDS_S)


def _run(
    cell: Cell, tokens: Path | None, profiled_steps: int, paths: RunPaths, progress: Progress
) -> None:
    started = time.time()
    if reason := refusal(cell.degrees, cell.training, cell.model):
        raise ValueError(reason)
    launch = launching.detect()
    progress.rank = launch.rank
    launching.check(launch, cell.degrees)
    _limit_threads(launch.local_world_size)
    # NCCL's watchdog delays the end of a rank that timed out by four times this long, a minute by
    # default, so that other ranks can dump their state. Nothing is dumped here.
    os.environ.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", "1000")
    if cell.training.compile:
        _keep_compiled_code_private()

    # Imported only now, so that a mistake in the call does not cost seconds of imports.
    import torch.distributed as dist

    from workflow_lib.trainers import engines
    from workflow_lib.trainers.native import device as devices
    from workflow_lib.trainers.native import mesh as meshes
    from workflow_lib.trainers.native.data import open_source
    from workflow_lib.trainers.native.generation import GenerationEngine
    from workflow_lib.trainers.native.loop import Run, generate, train

    imported = time.time()
    gpus = cell.degrees.gpu_order, cell.degrees.gpu_uuids
    device = devices.choose(launch, cell.hardware, cell.telemetry, *gpus)
    # A node's first rank compares the checksum for all, which wait for it when they connect.
    source = open_source(cell, tokens, compare=launch.local_rank == 0)
    # DeepSpeed uses the GPU of this number.
    os.environ["LOCAL_RANK"] = str(launch.local_rank if device.gpu is None else device.gpu)
    timeout = datetime.timedelta(seconds=COMMUNICATION_TIMEOUT_S)
    dist.init_process_group(
        device.backend,
        init_method=f"tcp://{launch.master_address}:{launch.master_port}",
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timeout,
        # NCCL would guess the GPU from the rank, which is wrong if nodes differ.
        device_id=device.torch if device.gpu is not None else None,
    )
    mesh = meshes.create(cell.degrees, device.torch)
    connected = time.time()
    progress.enter("build")
    generates = cell.training.workload == "inference"
    engine = GenerationEngine(cell, mesh) if generates else engines.create(cell, mesh)
    meshes.limit_waiting(timeout)
    record = RankRecord(
        rank=mesh.rank,
        node=node_name(),
        gpu=device.gpu,
        device_name=device.name,
        tp_rank=mesh.place.tp,
        pp_rank=mesh.place.pp,
        dp_rank=mesh.place.dp,
        ep_rank=mesh.place.ep,
        parameters=engine.parameters,
        pid=os.getpid(),
        started_unix_s=started,
        gpu_uuid=device.uuid,
        pci_address=device.pci_address,
        boot_id=boot_id(),
        job_id=job_id(),
        imported_unix_s=imported,
        connected_unix_s=connected,
        built_unix_s=time.time(),
        tokens_sha256=source.sha256,
        allocator=device.allocator,
        code_sha256=code_sha256(),
    )
    clock = _compare_clocks(launch, cell, progress)
    run = Run(cell, mesh, device, source, paths, record, progress.enter, profiled_steps)
    if isinstance(engine, GenerationEngine):
        generate(run, engine)
        engine.close()
    else:
        train(run, engine)
    after = _compare_clocks(launch, cell, progress)
    if clock is not None:
        _write_clock(paths, clock, after)
    progress.enter("end")
    dist.barrier()
    dist.destroy_process_group()


def _compare_clocks(
    launch: launching.Launch, cell: Cell, progress: Progress
) -> ClockReading | str | None:
    """Compare this node's clock with rank 0's; None on ranks other than their node's first, and in
    a run on one node."""
    if cell.nodes == 1:
        return None
    from workflow_lib.trainers.native.clocks import compare

    progress.enter("clocks")
    return compare(launch, cell.nodes)


def _write_clock(
    paths: RunPaths, before: ClockReading | str, after: ClockReading | str | None
) -> None:
    node = node_name()
    if isinstance(before, ClockReading) and isinstance(after, ClockReading):
        record = NodeClock(node, before, after)
    else:
        reason = before if isinstance(before, str) else str(after)
        record = NodeClock(node, None, None, reason)
    write_json(paths.clock(node), record)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # After the loss of a peer, a communication thread can keep the interpreter from exiting for
    # ever.
    os._exit(code)
