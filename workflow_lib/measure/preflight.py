"""``triptych preflight DIR``: says in a minute whether this node's GPUs are fit to train.

All GPUs multiply matrices at once, copy memory, and exchange data with the host and with each
other, while the sampler reads them. Each is compared with its peers: those of the node, and those
of other nodes that wrote to the same DIR. GPU models that we measured are compared with that, too.
It needs a Python whose torch sees the GPUs, and exits with 1 if a GPU is not fit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workflow_lib.measure import conclude, sampling, summary
from workflow_lib.measure.allocation import Allocation
from workflow_lib.records.paths import node_name
from workflow_lib.records.whole_files import write_json
from workflow_lib.words import counted


class Test(NamedTuple):
    """What a GPU is tried with."""

    title: str
    unit: str
    #: a GPU is not fit if it is so much below the median of its peers
    below: float


TESTS: Mapping[str, Test] = {
    "matrix_tflops": Test("matrix products", "TFLOP/s", 0.05),
    "memory_gb_per_s": Test("memory, read and written", "GB/s", 0.05),
    "from_host_gb_per_s": Test("from the host", "GB/s", 0.2),
    "to_host_gb_per_s": Test("to the host", "GB/s", 0.2),
    "slowest_peer_gb_per_s": Test("to the slowest peer", "GB/s", 0.1),
}
#: a GPU is not fit either if it is so much below what its model was measured to do
BELOW_KNOWN = 0.15
#: medians of GPUs that this command tried (evidence/measured/preflight-h100x2.zip)
KNOWN: Mapping[str, Mapping[str, float]] = {
    "NVIDIA H100 80GB HBM3": {
        "matrix_tflops": 675.0,
        "memory_gb_per_s": 2970.0,
        "from_host_gb_per_s": 54.1,
        "to_host_gb_per_s": 54.5,
        "slowest_peer_gb_per_s": 379.0,
    }
}
#: throttling of this kind, in any of the time, is a fault of the node; not all GPUs have a counter
#: of the power brake
_THERMAL = ("throttle_sw_thermal_s", "throttle_hw_thermal_s")
_HEAT = (*_THERMAL, "throttle_power_brake_s")
#: a share of the time in which heat may show by chance
_LEAST_HEAT = 0.01


class PreflightError(Exception):
    """Nothing can be tried here. The message says why."""


class Sizes(NamedTuple):
    """How large what the GPUs do is."""

    matrix: int
    #: products between two looks
    products: int
    copied_bytes: int
    linked_bytes: int


_ON_GPU = Sizes(8192, 10, 2**31, 2**28)
_ON_CPU = Sizes(256, 2, 2**22, 2**20)


class Device:
    """A GPU, or the CPU where this is only tried."""

    def __init__(self, torch: Any, index: int | None, sizes: Sizes) -> None:
        self._torch = torch
        self._cuda = index is not None
        self.name = f"cuda:{index}" if self._cuda else "cpu"
        make = torch.Generator(self.name).manual_seed(1)
        shape = (2, sizes.matrix, sizes.matrix)
        kind = torch.bfloat16 if self._cuda else torch.float32
        self._a, self._b = torch.randn(shape, generator=make, device=self.name, dtype=kind)
        self.sizes = sizes

    def mark(self) -> Any:
        """A moment in its work."""
        if not self._cuda:
            return time.perf_counter()
        with self._torch.cuda.device(self.name):
            event = self._torch.cuda.Event(enable_timing=True)
            event.record()
        return event

    def between_s(self, before: Any, after: Any) -> float:
        """Seconds between two moments, once the later one is over."""
        if not self._cuda:
            return float(after - before)
        after.synchronize()
        return float(before.elapsed_time(after)) / 1e3

    def multiply(self) -> tuple[Any, Any]:
        """Begin some products."""
        before = self.mark()
        for _ in range(self.sizes.products):
            self._a @ self._b
        return before, self.mark()

    def copies_s(self, source: str, target: str, size: int) -> float:
        """The median time to copy so many bytes from a device to another, as the target sees it."""
        from_host, to_host = source == "cpu", target == "cpu"
        empty, pinned = self._torch.empty, self._cuda
        a = empty(size, dtype=self._torch.uint8, device=source, pin_memory=from_host and pinned)
        b = empty(size, dtype=self._torch.uint8, device=target, pin_memory=to_host and pinned)
        times = []
        for _ in range(6):
            before = self.mark()
            b.copy_(a, non_blocking=True)
            times.append(self.between_s(before, self.mark()))
        return statistics.median(times[1:])


def try_devices(devices: Sequence[Device], seconds: float) -> tuple[list[dict[str, float]], Any]:
    """What each device does, and when they multiplied (Unix time)."""
    of_devices: list[dict[str, float]] = [{} for _ in devices]
    speeds: list[list[float]] = [[] for _ in devices]
    start = time.time()
    waiting = [device.multiply() for device in devices]
    while time.time() < start + seconds:
        # The next ones are asked for before the last are over, so that no GPU waits.
        further = [device.multiply() for device in devices]
        for device, speed, marks in zip(devices, speeds, waiting):
            work = 2 * device.sizes.matrix**3 * device.sizes.products
            speed.append(work / device.between_s(*marks) / 1e12)
        waiting = further
    window = (start, time.time())
    for values, speed in zip(of_devices, speeds):
        values["matrix_tflops"] = statistics.median(speed[len(speed) // 2 :])
    for device, values in zip(devices, of_devices):
        size, link = device.sizes.copied_bytes, device.sizes.linked_bytes
        own = device.name
        values["memory_gb_per_s"] = 2 * size / device.copies_s(own, own, size) / 1e9
        values["from_host_gb_per_s"] = link / device.copies_s("cpu", own, link) / 1e9
        values["to_host_gb_per_s"] = link / device.copies_s(own, "cpu", link) / 1e9
        peers = [
            link / device.copies_s(own, other.name, link) / 1e9
            for other in devices
            if other is not device
        ]
        if peers:
            values["slowest_peer_gb_per_s"] = min(peers)
    return of_devices, window


def problems_of(gpu: Mapping[str, Any], peers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why a GPU is not fit, by all GPUs of its model, ``peers``."""
    for name, test in TESTS.items():
        if (value := gpu["values"].get(name)) is None:
            continue
        others = [
            peer["values"][name]
            for peer in peers
            if name in peer["values"] and peer["uuid"] != gpu["uuid"]
        ]
        if others and value < (1 - test.below) * (middle := statistics.median(others)):
            yield (
                f"{test.title}: {value:.4g} {test.unit}, {100 * (1 - value / middle):.0f} % below "
                f"the median of {counted(len(others), 'other GPU')}"
            )
        known = KNOWN.get(gpu["name"], {}).get(name)
        if known is not None and value < (1 - BELOW_KNOWN) * known:
            yield (
                f"{test.title}: {value:.4g} {test.unit}, {100 * (1 - value / known):.0f} % below "
                "what this model did when we measured it"
            )
    hot = max((gpu["throttle_shares"].get(name, 0.0) for name in _HEAT), default=0.0)
    if hot > _LEAST_HEAT:
        yield f"throttled by heat or by the power brake {100 * hot:.0f} % of the time"


def judge(records: Sequence[Mapping[str, Any]], node: str) -> list[str]:
    """Why GPUs of a node are not fit: a sentence each."""
    of_model = defaultdict(list)
    for record in records:
        for gpu in record["gpus"]:
            of_model[gpu["name"]].append(gpu)
    return [
        f"GPU {gpu['gpu']} ({gpu['uuid']}): {problem}"
        for record in records
        if record["node"] == node
        for gpu in record["gpus"]
        for problem in problems_of(gpu, of_model[gpu["name"]])
    ]


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Try this node's GPUs; returns what is written. Raises PreflightError and OSError."""
    try:
        import torch
    except ImportError:
        raise PreflightError(f"{sys.executable} has no torch; use a Python that has") from None
    count = 0 if options.simulate else torch.cuda.device_count()
    if not count and not options.simulate:
        raise PreflightError("torch sees no GPUs; --simulate 2 tries this without any")
    sizes = _ON_GPU if count else _ON_CPU
    numbers = range(count) if count else [None] * options.simulate
    paths = sampling.new_directory(options.directory / f"{node_name()}-readings")
    samplers = sampling.Samplers(paths.directory, Allocation(None, 1), 10.0, options.simulate)
    samplers.wait_until_ready()
    try:
        devices = [Device(torch, number, sizes) for number in numbers]
        values, window = try_devices(devices, options.seconds)
    finally:
        samplers.stop()
    if samplers.problem:
        raise PreflightError(samplers.problem)
    known = summary.nothing_told("preflight", warmup_steps=0)
    known.update(started_unix_s=window[0], ended_unix_s=window[1])
    record = summary.summarise(paths.directory, known)
    write_json(paths.measured, record)
    of_uuid = {gpu["uuid"]: gpu for gpu in record["gpus"]}
    gpus = []
    for number, of_device in enumerate(values):
        uuid = record["gpus"][number]["uuid"]
        if count:
            uuid = f"GPU-{torch.cuda.get_device_properties(number).uuid}"
        gpus.append({**of_uuid[uuid], "values": of_device})
    return {"node": node_name(), "simulated": not count, "gpus": gpus}


def lines_of(
    record: Mapping[str, Any], problems: Sequence[str], records: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    """The sentences for the terminal, of a record among those of all nodes."""
    if record["simulated"]:
        yield "SIMULATED: the CPU was tried, and these are no measurements of GPUs"
    for gpu in record["gpus"]:
        values = [f"{gpu['values'][n]:.4g} {TESTS[n].unit} {TESTS[n].title}" for n in gpu["values"]]
        values += [
            f"{gpu[name]:.4g} {unit}"
            for name, unit in (
                ("power_mean_w", "W"),
                ("sm_clock_mean_mhz", "MHz"),
                ("temperature_max_c", "°C"),
            )
            if gpu[name] is not None
        ]
        yield f"GPU {gpu['gpu']}: {', '.join(values)}"
    yield from problems
    untold = sum(not gpu["throttle_shares"].keys() >= {*_THERMAL} for gpu in record["gpus"])
    if untold:
        yield f"heat is not told of {counted(untold, 'GPU')}, without counters of throttling by it"
    known = sum(gpu["name"] in KNOWN for gpu in record["gpus"])
    against = f"against {len(records)} nodes here" if len(records) > 1 else "against its own GPUs"
    models = Counter(gpu["name"] for of_node in records for gpu in of_node["gpus"])
    alone = sum(models[gpu["name"]] == 1 and gpu["name"] not in KNOWN for gpu in record["gpus"])
    verdict = "NOT FIT" if problems else "fit but for heat" if untold else "fit"
    if alone and not problems:
        verdict = f"not told of {counted(alone, 'GPU')} without another of its model"
    if known < len(record["gpus"]):
        against += "; we have not measured this model"
    yield f"{record['node']}: {verdict}, {against}"


def command_line(prog: str) -> argparse.ArgumentParser:
    """The options of the command, which is called ``prog``."""
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="that all nodes see")
    parser.add_argument(
        "--seconds", type=float, default=30.0, metavar="S", help="of matrix products (30)"
    )
    parser.add_argument(
        "--simulate", type=conclude.count, default=0, metavar="N", help="simulate N GPUs, to try it"
    )
    return parser


def main(arguments: Sequence[str] | None = None, prog: str = "triptych preflight") -> int:
    """Try this node; returns 0 if it is fit and 1 if not."""
    parser = command_line(prog)
    options = parser.parse_args(arguments)
    options.directory = options.directory.absolute()
    try:
        record = run(options)
        write_json(options.directory / f"{record['node']}.json", record)
        others = sorted(options.directory.glob("*.json"))
        records = [json.loads(path.read_bytes()) for path in others]
    except (PreflightError, OSError, ValueError) as error:
        parser.error(str(error))
    problems = judge(records, record["node"])
    for line in lines_of(record, problems, records):
        conclude.say(line)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
