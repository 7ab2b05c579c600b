"""Tells ``triptych measure`` when steps begin and end. Outside of it, nothing happens here.

    import triptych_steps

    for batch in loader:
        with triptych_steps.step(tokens=batch.numel()) as step:
            loss = forward(batch)
            step.phase("forward")
            ...

Callbacks do the same for libraries that own the loop::

    transformers.Trainer(..., callbacks=[triptych_steps.transformers_callback(tokens=…)])
    lightning.Trainer(..., callbacks=[triptych_steps.lightning_callback(tokens=…)])
    torchtitan.train.main(triptych_steps.torchtitan_trainer(Trainer, tokens=…))

Times of steps are the GPU's, from CUDA events that are read once they are over, so that nothing
waits for the GPU. Without a GPU they are the host's.
"""

import atexit
import csv
import json
import os
import socket
import sys
import time
from collections import deque

#: set by ``triptych measure``: where ranks write, and how many steps are warm-up
_DIRECTORY = os.environ.get("TRIPTYCH_STEPS", "")
_WARMUP_STEPS = int(os.environ.get("TRIPTYCH_WARMUP_STEPS", "0"))
#: set for a cell of a sweep: how many steps count, and the tokens of each on this rank
_MOST_STEPS = int(os.environ.get("TRIPTYCH_STEPS_MOST", "0"))
_TOKENS = os.environ.get("TRIPTYCH_TOKENS")
_COLUMNS = ("step", "phase", "started_unix_s", "ended_unix_s", "tokens", "loss", "skipped", "parts")
if _MOST_STEPS:
    _COLUMNS = (
        *("step", "phase", "started_unix_s", "ended_unix_s", "loss", "tokens"),
        *("memory_allocated_bytes", "memory_peak_bytes", "memory_reserved_bytes"),
        *("memory_used_bytes", "allocator_retries", "allocator_frees"),
    )
#: what the job tells of the rank
_RANK = json.loads(os.environ.get("TRIPTYCH_RANK") or "{}")
_IMPORTED_UNIX_S = time.time()
#: so many marks tell when the first one was by the host's clock, well enough
_MARKS_FOR_CLOCK = 8
#: so many marks may wait for a GPU that is behind
_MOST_WAITING = 4096


class _Mark:
    """A moment in the work of the GPU, or of the host."""

    __slots__ = ("event", "recorded", "seconds")

    def __init__(self, event):
        self.event = event
        self.recorded = time.time()
        #: since the first mark, on the GPU; None until it is over
        self.seconds = None


class Recorder:
    """Writes the steps of this process to files whose names begin with ``name``."""

    def __init__(self, name):
        self._name = name
        self._file = None
        self._cuda = None
        self._marks = deque()
        self._steps = deque()
        self._number = 0
        self._before = None
        self._resolved = 0
        #: when the first mark was, by the host's clock: each mark was over after it was recorded,
        #: and before it was first seen to be over
        self._least, self._most = -float("inf"), float("inf")
        self._first_unix_s = None
        #: tells memory and makes a profile, in a cell of a sweep
        self._observed = None

    def mark(self):
        """A moment, once the GPU has done what was asked of it so far."""
        if self._file is None:
            self._open()
        event = None
        if self._cuda is not None:
            event = self._cuda.Event(enable_timing=True)
            event.record()
        mark = _Mark(event)
        self._marks.append(mark)
        self.look()
        return mark

    def add(self, started, ended, tokens=None, loss=None, skipped=False, parts=()):
        """Write a step between two marks, once the GPU has done it. ``parts`` are pairs of a name
        and the mark of its end."""
        seen = {}
        if self._observed is not None:
            try:
                seen = self._observed.stepped()
            except Exception as error:  # the program must not notice
                self._observed = None
                print(f"triptych: memory is not seen any more: {error}", file=sys.stderr)
        self._steps.append((started, ended, tokens, loss, skipped, parts, seen))
        self._write()

    def look(self):
        """See which marks are over."""
        while self._marks:
            mark = self._marks[0]
            if mark.event is None:
                mark.seconds, self._first_unix_s = mark.recorded, 0.0
            elif mark.event.query():
                self._resolve(mark, time.time())
            elif len(self._marks) <= _MOST_WAITING:
                return
            self._marks.popleft()

    def _resolve(self, mark, seen):
        before = self._before
        mark.seconds = (
            0.0 if before is None else before.seconds + before.event.elapsed_time(mark.event) / 1e3
        )
        self._before = mark
        self._resolved += 1
        self._least = max(self._least, mark.recorded - mark.seconds)
        self._most = min(self._most, seen - mark.seconds)
        if self._resolved == _MARKS_FOR_CLOCK:
            self._set_clock()

    def _set_clock(self):
        if self._first_unix_s is None:
            self._first_unix_s = (self._least + max(self._least, self._most)) / 2

    def _open(self):
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            self._cuda = torch.cuda
        rank = os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or "0"
        # Two processes without a number of their own would both be rank 0.
        for name in (rank, f"{rank}-{os.getpid()}"):
            path = os.path.join(_DIRECTORY, f"{self._name}{name}")
            try:
                self._file = open(f"{path}.csv", "x", newline="", encoding="ascii")  # noqa: SIM115
            except FileExistsError:
                continue
            break
        if self._file is None:
            raise FileExistsError(f"{path}.csv is there already")
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(_COLUMNS)
        record = {
            "rank": int(rank),
            "node": os.environ.get("SLURMD_NODENAME") or socket.gethostname().split(".")[0],
            "pid": os.getpid(),
            "started_unix_s": _IMPORTED_UNIX_S,
            **_RANK,
        }
        if self._cuda is not None:
            properties = self._cuda.get_device_properties(self._cuda.current_device())
            uuid = str(getattr(properties, "uuid", "") or "")
            record["gpu_uuid"] = f"GPU-{uuid}" if uuid and not uuid.startswith("GPU-") else uuid
            record["device_name"] = properties.name
        if _MOST_STEPS:
            self._observe(record)
        record["degrees"] = _degrees or None
        with open(f"{path}.json", "w", encoding="utf-8") as stream:
            json.dump({name: value for name, value in record.items() if value is not None}, stream)
        atexit.register(self._finish)

    def _observe(self, record):
        try:
            from workflow_lib.trainers.observed import Observed

            observed = Observed(_WARMUP_STEPS)
            record["allocator"] = observed.allocator
            observed.begin()
            self._observed = observed
        except Exception as error:  # of another Python than the job's, for one
            print(f"triptych: memory and profile are not seen: {error}", file=sys.stderr)

    def _write(self):
        """Write the steps that are over."""
        while self._steps and self._first_unix_s is not None:
            started, ended, tokens, loss, skipped, parts, seen = self._steps[0]
            if ended.seconds is None:
                return
            self._steps.popleft()
            if started.seconds is None:
                continue  # given up as the GPU was too far behind
            if _MOST_STEPS and self._number >= _MOST_STEPS:
                if self._number == _MOST_STEPS:
                    print(
                        "triptych: the program trains more steps than its cell asks for; they are "
                        "not recorded. {steps} in its command tells it how many",
                        file=sys.stderr,
                    )
                self._number += 1
                continue
            # What the GPU computed was copied by the end of the step.
            loss = None if loss is None else float(loss)
            ends = [f"{name}={self._unix(at)}" for name, at in parts if at.seconds is not None]
            row = {
                "step": self._number,
                "phase": "measured" if self._number >= _WARMUP_STEPS else "warmup",
                "started_unix_s": self._unix(started),
                "ended_unix_s": self._unix(ended),
                "tokens": _TOKENS if tokens is None else tokens,
                "loss": loss,
                "skipped": int(skipped),
                "parts": ";".join(ends),
                **seen,
            }
            values = (row.get(name) for name in _COLUMNS)
            self._rows.writerow(["" if value is None else value for value in values])
            self._file.flush()
            self._number += 1

    def _unix(self, mark):
        return f"{self._first_unix_s + mark.seconds:.6f}"

    def _finish(self):
        try:
            if self._cuda is not None:
                self._cuda.synchronize()
            self.look()
            self._set_clock()
            self._write()
            self._file.close()
        except Exception as error:  # of a program that ends, whose exit code stays its own
            print(f"triptych: the last steps were not written: {error}", file=sys.stderr)


class _NoStep:
    """A step outside of ``triptych measure``."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False

    def phase(self, name):
        pass

    def loss(self, value):
        pass


class _Step(_NoStep):
    def __init__(self, tokens):
        self._tokens = tokens
        self._loss = None
        self._parts = []

    def __enter__(self):
        self._started = _recorder.mark()
        return self

    def __exit__(self, kind, *_):
        ended = _recorder.mark()
        if kind is None:  # a step that was broken off is none
            _recorder.add(self._started, ended, self._tokens, self._loss, parts=self._parts)
        return False

    def phase(self, name):
        """The part of the step that ends here is called ``name``."""
        self._parts.append((name, _recorder.mark()))

    def loss(self, value):
        """The step's loss, of the global batch, in nats: a number or a tensor, which is read later,
        so that nothing waits for the GPU."""
        if getattr(value, "is_cuda", False):
            value = value.detach().reshape(())
            host = sys.modules["torch"].empty_like(value, device="cpu", pin_memory=True)
            value = host.copy_(value, non_blocking=True)
        self._loss = value


_recorder = Recorder("rank")
#: dimension → its degree
_degrees = {}


def layout(**degrees):
    """The degrees that the program trains with, as ``layout(tp=2, dp=4)``, told before its first
    step. Raises ValueError in a sweep whose cell asks for others."""
    asked = json.loads(os.environ.get("TRIPTYCH_DEGREES") or "{}")
    for name, degree in degrees.items():
        if degree != asked.get(name, degree):
            raise ValueError(
                f"the program trains with {name} {degree}, and the cell asks for {asked[name]}: "
                "its command, or what it makes of it, is another layout"
            )
    _degrees.update(degrees)


def step(tokens=None):
    """A step, as a context: ``tokens`` are those of this rank, None if they are not known."""
    return _Step(tokens) if _DIRECTORY else _NoStep()


class _Turns:
    """Steps of a library's loop, between two calls of a callback."""

    def __init__(self, tokens):
        self._tokens = tokens
        self._step = None

    def begin(self):
        self._step = step(self._tokens).__enter__()

    def end(self):
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def transformers_callback(tokens=None):
    """A callback of transformers.Trainer."""
    from transformers import TrainerCallback

    class Steps(TrainerCallback):
        def __init__(self):
            self._turns = _Turns(tokens)

        def on_step_begin(self, *_, **__):
            self._turns.begin()

        def on_step_end(self, *_, **__):
            self._turns.end()

    return Steps()


def lightning_callback(tokens=None):
    """A callback of Lightning's Trainer. With accumulated gradients its steps are micro-batches
    until the optimizer's, so a step ends where the optimizer has stepped."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

    class Steps(Callback):
        def __init__(self):
            self._turns = _Turns(tokens)
            self._at = None

        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step != self._at:
                self._at = trainer.global_step
                self._turns.begin()

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step != self._at:
                self._turns.end()

    return Steps()


def torchtitan_trainer(trainer, tokens=None):
    """A subclass of torchtitan's Trainer that tells its steps; torchtitan has no callbacks."""

    class Steps(trainer):
        def train_step(self, *arguments, **named):
            with step(tokens):
                return super().train_step(*arguments, **named)

    return Steps
