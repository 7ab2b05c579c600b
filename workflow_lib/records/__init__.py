"""Every file under ``results/``: its path, and the names, units and types of its contents.

Stages exchange data only through these files, and this package is the only one that knows their
names. It needs only the standard library, because training and telemetry read it on compute nodes
and in site containers.

A run's directory, in the order in which its files appear::

    cell.json               the resolved cell: all that training and telemetry read
    job.sh                  the whole job; can be given to sbatch by hand
    order.json              the run's place in the order of submission
    submission.json         the name of the job that is about to be submitted, and who submits it
    job.json                the scheduler's id of the job, when it was submitted, and by whom
    environment.json        versions, host, commit, checksum of the code
    gpu-limits/<node>.json  limits that the job set on GPUs and restored, if the cell asks for them
    telemetry/<node>.json   the GPUs that the sampler found on the node
    telemetry/<node>.csv    one row a tick and GPU, flushed every second
    telemetry/<node>-counters.csv   energy, throttle times, links: each on a period of its own
    telemetry/<node>-power.csv   the driver's own, finer samples of power
    telemetry/<node>-events.csv  Xid and ECC events
    telemetry/<node>-blocks.csv  what each sampling block cost, if rates alternate
    telemetry/<node>-host.csv   one row a second: CPU, memory, network
    telemetry/<node>-end.json   counts, written if the sampler ended without an error
    cool-down.json          how long the job waited for cool GPUs, if the cell asks for that
    steps/rank<n>.json      where rank n ran, which part of the model it held, and its precisions
    steps/rank<n>.csv       one row a step
    steps/links-rank<n>.json  bytes that its GPU sent and received over its links in whole steps
    steps/clock-<node>.json  how far the node's clock was ahead of rank 0's, if there are several
    errors/rank<n>.json     the error of which rank n died, written by itself
    exits/rank<n>.json      how rank n's process ended, if it failed; written by its watcher
    traces/rank<n>.json.gz  rank n's Kineto trace, in a profiled run
    logs/                   what each process printed
    ended.json              exit codes, written by the job at its end
    outcome.json            how the run ended, if that is a result
    failure.json            the same record for a run that is not a result
    attempts/<k>/           all of the above for an earlier attempt
"""

from workflow_lib.records.cell import Cell, Data, Hardware, Telemetry, TelemetrySource
from workflow_lib.records.cell_axes import IDENTITY, identity
from workflow_lib.records.checks import CheckPaths, CheckRecord, Finding, NodeCheck
from workflow_lib.records.checksums import damaged, write_checksums
from workflow_lib.records.claims_table import CLAIMS, SLOTS
from workflow_lib.records.columns import Column
from workflow_lib.records.comparison_table import COMPARISON
from workflow_lib.records.contract import (
    NOT_TOLD,
    STEPS,
    STEPS_REQUIRED,
    RankRecord,
)
from workflow_lib.records.degrees import Coordinates, Degrees, Schedule, coordinates, group_members
from workflow_lib.records.files import (
    read_if_there,
    read_json,
    read_outcome,
    read_record,
)
from workflow_lib.records.measures import ESTIMATES, MEASURES, Measure, inapplicable
from workflow_lib.records.model import Activation, Family, Model
from workflow_lib.records.nodes import (
    LIMITS_LEFT,
    ClockReading,
    CoolDown,
    GpuLimits,
    LinkCount,
    LinkReading,
    NodeClock,
    NodeLimits,
    TelemetryEnd,
    TelemetryStart,
)
from workflow_lib.records.outcomes import (
    EndedRecord,
    ErrorRecord,
    ExitRecord,
    JobRecord,
    JobState,
    OrderRecord,
    Outcome,
    OutcomeRecord,
    StopRecord,
    SubmissionRecord,
    SuspensionRecord,
)
from workflow_lib.records.paths import (
    ComparisonPaths,
    RunPaths,
    SweepPaths,
    boot_id,
    code_sha256,
    job_id,
    node_name,
    rank_number,
)
from workflow_lib.records.reading import RecordError, end_of_file, open_file, read_bytes, shown
from workflow_lib.records.run_tables import KERNELS, SERIES, SERIES_POINTS, STEP_TIMES, TRACES
from workflow_lib.records.tables import (
    CELLS,
    GPUS,
    NODES,
    OVERHEAD,
    PLAN,
    RUNS,
    TABLES,
    UNUSED_GPUS,
    Table,
)
from workflow_lib.records.telemetry_columns import (
    GPU_COUNTERS,
    GPU_EVENTS,
    GPU_SAMPLES,
    HOST_SAMPLES,
    POWER_SAMPLES,
    SAMPLER_BLOCKS,
)
from workflow_lib.records.training import (
    SUMS,
    Backend,
    Precision,
    Precisions,
    Recomputation,
    Routing,
    Training,
    Workload,
    precisions_of,
)
from workflow_lib.records.whole_files import (
    may,
    owner_in_the_way,
    said,
    user_name,
    whole_file,
    write_json,
)

__all__ = [
    "CELLS",
    "CLAIMS",
    "COMPARISON",
    "ESTIMATES",
    "GPUS",
    "GPU_COUNTERS",
    "GPU_EVENTS",
    "GPU_SAMPLES",
    "HOST_SAMPLES",
    "IDENTITY",
    "KERNELS",
    "LIMITS_LEFT",
    "MEASURES",
    "NODES",
    "NOT_TOLD",
    "OVERHEAD",
    "PLAN",
    "POWER_SAMPLES",
    "RUNS",
    "SAMPLER_BLOCKS",
    "SERIES",
    "SERIES_POINTS",
    "SLOTS",
    "STEPS",
    "STEPS_REQUIRED",
    "STEP_TIMES",
    "SUMS",
    "TABLES",
    "TRACES",
    "UNUSED_GPUS",
    "Activation",
    "Backend",
    "Cell",
    "CheckPaths",
    "CheckRecord",
    "ClockReading",
    "Column",
    "ComparisonPaths",
    "CoolDown",
    "Coordinates",
    "Data",
    "Degrees",
    "EndedRecord",
    "ErrorRecord",
    "ExitRecord",
    "Family",
    "Finding",
    "GpuLimits",
    "Hardware",
    "JobRecord",
    "JobState",
    "LinkCount",
    "LinkReading",
    "Measure",
    "Model",
    "NodeCheck",
    "NodeClock",
    "NodeLimits",
    "OrderRecord",
    "Outcome",
    "OutcomeRecord",
    "Precision",
    "Precisions",
    "RankRecord",
    "Recomputation",
    "RecordError",
    "Routing",
    "RunPaths",
    "Schedule",
    "StopRecord",
    "SubmissionRecord",
    "SuspensionRecord",
    "SweepPaths",
    "Table",
    "Telemetry",
    "TelemetryEnd",
    "TelemetrySource",
    "TelemetryStart",
    "Training",
    "Workload",
    "boot_id",
    "code_sha256",
    "coordinates",
    "damaged",
    "end_of_file",
    "group_members",
    "identity",
    "inapplicable",
    "job_id",
    "may",
    "node_name",
    "open_file",
    "owner_in_the_way",
    "precisions_of",
    "rank_number",
    "read_bytes",
    "read_if_there",
    "read_json",
    "read_outcome",
    "read_record",
    "said",
    "shown",
    "user_name",
    "whole_file",
    "write_checksums",
    "write_json",
]
