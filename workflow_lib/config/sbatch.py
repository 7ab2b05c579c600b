"""Options of sbatch that a platform's file may set: all but those that the workflow sets itself.
Their values are limited to words, because nothing can be quoted reliably in an ``#SBATCH`` line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

WORD = r"^[A-Za-z0-9][A-Za-z0-9_.,:@+-]*$"
CONSTRAINT = r"^[A-Za-z0-9_.,:@+&|*()\[\]-]+$"
HOSTS = r"^[A-Za-z0-9][A-Za-z0-9_.-]*(\[[0-9][0-9,-]*\][A-Za-z0-9_.-]*)*$"
OPTION = r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$"
#: a word that Slurm takes in an #SBATCH line
SchedulerWord = Annotated[str, Field(pattern=WORD)]
#: --constraint also has operators: "[rack1|rack2]", "a&b", "a*2"
SchedulerConstraint = Annotated[str, Field(pattern=CONSTRAINT)]
#: "node7", "node[1-3,5]", "rack[1-2]-node[01-16]"; a name with a slash would be read as a file
HostExpression = Annotated[str, Field(pattern=HOSTS)]
#: the long name of an option of sbatch, without its hyphens
OptionName = Annotated[str, Field(pattern=OPTION)]
#: the value of an option; true for an option without a value
OptionValue = SchedulerWord | Annotated[int, Field(ge=0)] | Literal[True]

#: key of a platform's file → the options that it sets
_KEYS = {
    "account": ("account",),
    "constraint": ("constraint",),
    "cpus_per_gpu": ("cpus-per-task", "cpus-per-gpu"),
    "exclude_nodes": ("exclude",),
    "exclusive": ("exclusive", "oversubscribe", "share"),
    "gpu_request and gpu_type": (
        *("gres", "gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"),
    ),
    "memory_per_node_gb": ("mem", "mem-per-cpu", "mem-per-gpu"),
    "partition": ("partition",),
    "qos": ("qos",),
    "requeue": ("requeue", "no-requeue"),
    "reservation": ("reservation",),
    "time_limit_max_min": ("time", "time-min"),
}
#: options that the workflow relies on to name jobs, lay out tasks, and find jobs and logs again
_RELIED_ON = (
    *("array", "job-name", "clusters", "cluster", "test-only", "wait", "parsable"),
    *("nodes", "nodefile", "ntasks", "ntasks-per-node", "ntasks-per-gpu", "ntasks-per-core"),
    *("ntasks-per-socket", "tres-per-task", "overcommit", "distribution"),
    *("use-min-nodes", "gpu-bind"),
    *("signal", "no-kill", "export", "export-file", "get-user-env", "propagate"),
    *("output", "error", "input", "open-mode", "chdir", "wrap", "container", "container-id"),
    *("uid", "gid", "ignore-pbs", "help", "usage", "version"),
)


#: the forms of a time that have a colon or a day
_TIME = re.compile(
    r"(?:(?P<days>\d{1,6})-(?P<of_day>\d{1,6}(?::\d{1,6}){0,2})|(?P<clock>\d{1,9}(?::\d{1,9}){1,2}))"
)


def seconds(time: str) -> int | None:
    """A time as Slurm writes it, in s; None if it is none, such as "infinite".

    The forms are minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes and
    days-hours:minutes:seconds (``man sbatch``, --time). Minutes alone are a number, not a form.
    """
    match = _TIME.fullmatch(time)
    if match is None:
        return None
    if match["days"] is None:
        parts = [0, *map(int, match["clock"].split(":"))][-3:]
    else:
        parts = [*map(int, match["of_day"].split(":")), 0, 0][:3]
    hours, minutes, rest = parts
    return int(match["days"] or 0) * 86_400 + hours * 3600 + minutes * 60 + rest


def refusal(names: Iterable[str]) -> str | None:
    """Why a platform's file may not set one of these options of sbatch; None if it may set all.

    The beginning of an option's name is refused too, because Slurm accepts abbreviations.
    """
    for name in names:
        for key, options in _KEYS.items():
            if any(option.startswith(name) for option in options):
                return f"the workflow sets --{name} itself; use the key {key} instead"
        if any(option.startswith(name) for option in _RELIED_ON):
            return f"the workflow relies on --{name} being as it sets it; leave it out"
    return None
