"""Models of the files under ``config/``: typed, frozen, and checked for contradictions.

study.load_study reads the files. ``docs/reference/configuration.md`` is made from the docstrings
here.
"""

from workflow_lib.config.claims import Claim, ClaimTest, Ledger, held_in_tables, left_open, selects
from workflow_lib.config.fields import Strict
from workflow_lib.config.files import DataSpec, Invocation, Meter, Meters
from workflow_lib.config.models import ModelSpec, Published, RotaryScaling
from workflow_lib.config.platforms import Container, Network, Platform
from workflow_lib.config.protocol import CoolDown, Protocol
from workflow_lib.config.sweeps import (
    ONLY_WITH,
    Exclusion,
    MatrixEntry,
    Prediction,
    SweepSpec,
    TrainingAxes,
    option_of,
    values,
)
from workflow_lib.config.trainers import TrainerSpec

__all__ = [
    "ONLY_WITH",
    "Claim",
    "ClaimTest",
    "Container",
    "CoolDown",
    "DataSpec",
    "Exclusion",
    "Invocation",
    "Ledger",
    "MatrixEntry",
    "Meter",
    "Meters",
    "ModelSpec",
    "Network",
    "Platform",
    "Prediction",
    "Protocol",
    "Published",
    "RotaryScaling",
    "Strict",
    "SweepSpec",
    "TrainerSpec",
    "TrainingAxes",
    "held_in_tables",
    "left_open",
    "option_of",
    "selects",
    "values",
]
