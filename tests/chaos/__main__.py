"""Puts faults into runs on a real Slurm of its own, and says how many ended right.

python -m tests.chaos --injections 300 --seed 1 --kinds rank_killed,scancel --real 30
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from random import Random

from tests.chaos import seclusion
from tests.chaos.harness import NODES, PLATFORMS, Injection, Laboratory
from tests.chaos.kinds import KINDS, Kind
from tests.slurm.cluster import Cluster

ROOT = Path(__file__).parent.parent.parent
#: what of the checkout is copied, so that edits while this runs change nothing half-way
_COPIED = (
    "workflow_lib",
    "rules",
    "config",
    "tests",
    "envs",
    "workflow",
    "Snakefile",
    "pyproject.toml",
)
#: faults of runs that are put in at once
_AT_ONCE = 14
#: rounds of such faults, and of faults of Snakemake, at once
_ROUNDS_AT_ONCE = 2
#: how many turns there are from one of the kinds that are costly to the next
_TURNS_BETWEEN = 3
#: Slurm's waits for what does not come, shorter than on a real cluster; and what sites may rule
_SETTINGS = {
    "SlurmdTimeout": "10",
    "MessageTimeout": "10",
    "PrivateData": "jobs",
    "PreemptType": "preempt/qos",
    "PreemptMode": "REQUEUE",
    "PreemptExemptTime": "0",
    "MaxArraySize": "0",
}


def main(arguments: Sequence[str]) -> int:
    """Returns the exit code: 0 where every fault ended right."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--injections", type=int, default=300)
    parser.add_argument("--real", type=int, default=0, help="of these, how many with real training")
    parser.add_argument("--seed", type=int, default=1)
    every = ",".join(KINDS)
    parser.add_argument("--kinds", default=every, help=f"of these; all unless given: {every}")
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="after these, no round of faults begins"
    )
    parser.add_argument("--output", type=Path, default=Path("results/chaos"))
    options = parser.parse_args(arguments)
    names = options.kinds.split(",")
    if unknown := sorted(set(names) - KINDS.keys()):
        parser.error(f"no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    inside = os.environ.get(seclusion.INSIDE)
    if inside is None:
        return _enter(arguments, options.output.absolute())
    directory = Path(inside)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's neglect of it would be inherited
    seclusion.furnish(directory)
    cluster = Cluster(directory / "slurm", _SETTINGS)
    cluster.start()
    try:
        kinds = [KINDS[name] for name in names]
        laboratory = Laboratory(cluster, directory / "sites", options.minutes)
        put_in = _injections(laboratory, kinds, options.injections, options.real, options.seed)
        timed = options.minutes < math.inf
        return _report(put_in, options.injections, options.output, timed)
    finally:
        shutil.copytree(cluster.directory / "log", directory / "slurm-log")
        cluster.stop()


def _enter(arguments: Sequence[str], output: Path) -> int:
    directory = Path(tempfile.mkdtemp(prefix="triptych-chaos-", dir="/var/tmp"))
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            skip = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, directory / "source" / name, ignore=skip)
        else:
            shutil.copy2(source, directory / "source" / name)
    os.chdir(directory / "source")
    code = seclusion.enter(directory, [*arguments, "--output", str(output)])
    if code == 0:
        shutil.rmtree(directory)
    else:
        print(f"what is left of the runs that ended wrong: {directory}", file=sys.stderr)
    return code


def _turns(kinds: Sequence[Kind]) -> Iterator[Kind]:
    """The kinds in turn, for ever. Those that take more than a run for themselves, and so several
    times as long, come in every third turn.
    """
    for turn in itertools.count():
        yield from (kind for kind in kinds if kind.scope == "run" or turn % _TURNS_BETWEEN == 0)


def _injections(
    laboratory: Laboratory, kinds: Sequence[Kind], count: int, real: int, seed: int
) -> Iterator[Injection]:
    """``count`` faults, ``real`` of them with real training, in rounds."""
    random = Random(seed)
    turns = list(itertools.islice(_turns(kinds), count))
    trainable = [index for index, kind in enumerate(turns) if kind.real]
    trained = set(trainable[:real])
    platforms = itertools.cycle(PLATFORMS)
    number = 0
    rounds: dict[bool, list[Callable[[], list[Injection]]]] = {False: [], True: []}
    for really in (False, True):
        chosen = [kind for index, kind in enumerate(turns) if (index in trained) is really]
        random.shuffle(chosen)
        for scope in ("run", "workflow", "node", "cluster"):
            waiting = [kind for kind in chosen if kind.scope == scope]
            while waiting:
                platform = next(platforms)
                size = {"run": 4 if really else _AT_ONCE, "node": NODES[platform]}.get(scope, 1)
                now, waiting = waiting[:size], waiting[size:]
                arguments = (now, platform, seed, number, really)
                alone = scope in ("node", "cluster")
                rounds[alone].append(partial(laboratory.round, *arguments))
                number += len(now)
    # Most of the time something is waited for, so rounds that cannot hit each other go at once.
    with ThreadPoolExecutor(_ROUNDS_AT_ONCE) as pool:
        for done in as_completed([pool.submit(each) for each in rounds[False]]):
            yield from done.result()
    for each in rounds[True]:
        yield from each()


def _report(injections: Iterator[Injection], count: int, output: Path, timed: bool) -> int:
    """Print a line for each injection and a table by kind; returns the exit code. Where it is
    ``timed``, there may be fewer than ``count``.
    """
    output.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    done: list[Injection] = []
    with (output / "injections.jsonl").open("w", encoding="utf-8") as log:
        for each in injections:
            done.append(each)
            log.write(json.dumps(each.plain(), ensure_ascii=False) + "\n")
            log.flush()
            told = "right" if each.right else f"WRONG: {'; '.join(each.wrong)}"
            trained = "trained" if each.real else "stand-in"
            outcomes = ",".join(str(outcome) for outcome in dict.fromkeys(each.outcomes))
            print(
                f"{len(done)}/{count} {time.monotonic() - began:.0f} s {each.kind} ({trained}, "
                f"{each.platform}, {'; '.join(each.details)}) -> {outcomes}: {told}",
                flush=True,
            )
    print(f"\n{'kind':32}{'injected':>9}{'right':>7}{'real':>6}  detected after (median, s)")
    for kind in dict.fromkeys(each.kind for each in done):
        own = [each for each in done if each.kind == kind]
        times = [value for each in own for value in each.detection_s]
        detected = f"{statistics.median(times):.1f}" if times else "–"
        right, real = sum(e.right for e in own), sum(e.real for e in own)
        print(f"{kind:32}{len(own):9}{right:7}{real:6}  {detected}")
    right = sum(each.right for each in done)
    print(f"{'all':32}{len(done):9}{right:7}  in {time.monotonic() - began:.0f} s")
    return 0 if right == len(done) and (timed or right == count) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
