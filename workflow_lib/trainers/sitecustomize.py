"""Sees the optimizer steps of a program that knows nothing of it.

Python imports this at its start, because ``triptych measure --steps hook`` puts its directory first
on PYTHONPATH. It imports nothing of torch itself: it waits until the program imports
``torch.optim.optimizer``, and registers torch's own hook there. A step ends where the first
optimizer has stepped after a backward pass, so several optimizers, groups of parameters and
accumulated micro-batches make one step. Where a gradient scaler leaves a step out, its update ends
the step, which is marked as skipped.
"""

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import weakref

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watch:
    """Where steps end in this process."""

    def __init__(self):
        self._recorder = None
        self._latest = None
        self._backward_seen = self._backward_ever = False
        self._broken = False
        self._first_optimizer = None

    def backward(self):
        """A backward pass begins, in which optimizers may step."""
        if not self._backward_ever:
            self._latest = None  # what stepped before, as DeepSpeed's set-up does, ended no step
        self._backward_seen = self._backward_ever = True
        if self._recorder is not None:
            self._recorder.look()

    def stepped(self, optimizer):
        """An optimizer has stepped. Of a program whose backward passes are not seen, the first
        optimizer counts."""
        if self._first_optimizer is None or self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)
        if self._backward_seen or (
            not self._backward_ever and self._first_optimizer() is optimizer
        ):
            self._end_step(skipped=False)

    def updated(self):
        """A gradient scaler was updated, which ends a step also if the optimizer did not step."""
        if self._backward_seen:
            self._end_step(skipped=True)

    def _end_step(self, skipped):
        self._backward_seen = False
        if self._broken:
            return
        try:
            if self._recorder is None:
                import triptych_steps

                # In a cell of a sweep it alone tells the steps.
                of_cell = "TRIPTYCH_STEPS_SEEN" in os.environ
                self._recorder = triptych_steps.Recorder("rank" if of_cell else "hook-rank")
            mark = self._recorder.mark()
            # Nobody knows when the first step began.
            if self._latest is not None:
                self._recorder.add(self._latest, mark, skipped=skipped)
            self._latest = mark
        except Exception as error:  # the program must not notice
            self._broken = True
            print(f"triptych: steps are not seen any more: {error}", file=sys.stderr)


_watch = _Watch()


def _count_backward(watch):
    """Have backward passes be seen, by the two functions with which programs begin one."""
    import torch.autograd

    for name in ("backward", "grad"):
        _wrap(torch.autograd, name, before=watch.backward)


def _wrap(owner, name, before=None, after=None):
    """Have a function of a module or class call ``before`` and ``after`` itself."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*arguments, **named):
        if before is not None:
            before()
        result = function(*arguments, **named)
        if after is not None:
            after()
        return result

    setattr(owner, name, wrapped)


def _of_optimizers(module):
    _count_backward(_watch)
    module.register_optimizer_step_post_hook(lambda optimizer, *_: _watch.stepped(optimizer))


def _of_scalers(module):
    _wrap(module.GradScaler, "update", after=_watch.updated)


_WANTED = {"torch.optim.optimizer": _of_optimizers, "torch.amp.grad_scaler": _of_scalers}


class _Finder(importlib.abc.MetaPathFinder):
    """Calls back once a module of _WANTED has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in _WANTED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        call, run = _WANTED.pop(name), spec.loader.exec_module

        def exec_module(module):
            run(module)
            call(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("TRIPTYCH_STEPS") and os.environ.get("TRIPTYCH_STEPS_SEEN", "hook") == "hook":
    sys.meta_path.insert(0, _Finder())

# The sitecustomize that this one hides, if there is one.
_other = importlib.machinery.PathFinder.find_spec(
    "sitecustomize", [path for path in sys.path if os.path.abspath(path) != _HERE]
)
if _other is not None and _other.loader is not None:
    _module = importlib.util.module_from_spec(_other)
    _other.loader.exec_module(_module)
