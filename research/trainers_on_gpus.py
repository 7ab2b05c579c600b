"""Measures other people's trainers on this machine's GPUs, beside a recorder of energy counters.

Each word is a trainer of tests/measure/trainers, how many GPUs it gets, and its steps:

    python3 research/trainers_on_gpus.py --output trainers torch-2-300 megatron-1-200

--alternate stops the sampler for every other 2 s, so that steps with and without it compare.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Event, Thread
from typing import TextIO

import psutil

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "tests/measure/trainers"
#: how often the recorder looks at a counter, which changes each 100 ms
LOOK_S = 0.004
#: one turn of the sampler, which runs in the first and last turn of four
TURN_S = 2.0


def record(path: Path, over: Event) -> None:
    """Write down each change of each GPU's energy counter, and between which looks it was seen."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    seen = {pynvml.nvmlDeviceGetUUID(handle): (handle, time.time(), -1) for handle in handles}
    with path.open("w", encoding="ascii") as stream:
        stream.write("gpu_uuid,before_unix_s,after_unix_s,energy_mj\n")
        while not over.wait(LOOK_S):
            for uuid, (handle, before, energy_mj) in seen.items():
                now_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
                now = time.time()
                if now_mj != energy_mj:
                    stream.write(f"{uuid},{before:.6f},{now:.6f},{now_mj}\n")
                seen[uuid] = (handle, now, now_mj)


def alternate(measuring: int, stream: TextIO, over: Event) -> None:
    """Stop and continue the sampler of a process by turns, and write down when."""
    turn = 0
    while not over.wait(TURN_S):
        runs = turn % 4 in (0, 3)
        if let_sample(measuring, runs):
            stream.write(f"{time.time():.6f},{int(runs)}\n")
            turn += 1
    let_sample(measuring, True)


def let_sample(measuring: int, runs: bool) -> bool:
    """Continue or stop the samplers that a process has started; returns whether it has any."""
    found = False
    with suppress(psutil.NoSuchProcess):
        for child in psutil.Process(measuring).children():
            if "sample" in child.cmdline():
                child.resume() if runs else child.suspend()
                found = True
    return found


def command(name: str, gpus: int, steps: int, options: argparse.Namespace, directory: Path) -> str:
    """The words that measure a trainer, of the shell."""
    batch = f"--training.local_batch_size={options.batch}"
    compiled = "" if options.size == "quiet" else "--compile.enable "
    program = (
        f"titan.py --model.name=tokens --model.flavor={options.size} --training.steps={steps} "
        f"--training.seq_len=2048 {batch} {compiled}--job.dump_folder={directory}-dump"
        if name == "torchtitan"
        else f"programs.py {name} --steps={steps} --size={options.size} --records={directory}-dump"
    )
    simulate = f"--simulate={gpus} " if options.simulate else ""
    return (
        f"exec {sys.executable} -m workflow_lib.measure --output={directory} --steps=hook "
        f"{simulate}-- {sys.executable} -m torch.distributed.run --nproc-per-node={gpus} "
        f"{PROGRAMS}/{program} {'--calls' if options.calls else ''}"
    )


@contextmanager
def beside(function: object, *arguments: object) -> Iterator[None]:
    """Run a function with an event that says when to end, beside what is in the context."""
    over = Event()
    thread = Thread(target=function, args=(*arguments, over))  # type: ignore[arg-type]
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def run(word: str, options: argparse.Namespace) -> None:
    """Measure one trainer."""
    name, gpus, steps = word.split("-")
    directory = options.output / f"{name}-{gpus}"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    # The last GPUs, so that a number of torch's is not one of NVML's.
    every = options.visible.split(",")
    environment["CUDA_VISIBLE_DEVICES"] = ",".join(every[-int(gpus) :])
    began_s = time.monotonic()
    with (
        Path(f"{directory}.log").open("w") as log,
        subprocess.Popen(
            command(name, int(gpus), int(steps), options, directory),
            shell=True,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        if options.alternate:
            turns = Path(f"{directory}-turns.csv")
            with turns.open("w") as stream, beside(alternate, process.pid, stream):
                process.wait()
    print(f"{word}: exit code {process.returncode}, {time.monotonic() - began_s:.0f} s", flush=True)
    print("".join(Path(log.name).read_text().splitlines(keepends=True)[-12:]), flush=True)


def main() -> None:
    """Measure the trainers that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="+", metavar="TRAINER-GPUS-STEPS")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--size", default="large")
    parser.add_argument("--batch", type=int, default=4, help="of torchtitan, as programs.py has it")
    parser.add_argument("--visible", default="0,1", help="the GPUs, by NVML's numbers")
    parser.add_argument("--calls", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--alternate", action="store_true")
    parser.add_argument("--simulate", action="store_true", help="GPUs, to try this without any")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    options.output = options.output.resolve()
    recorder = options.output / "recorder.csv"
    with nullcontext() if options.simulate else beside(record, recorder):
        for word in options.words:
            run(word, options)


if __name__ == "__main__":
    main()
