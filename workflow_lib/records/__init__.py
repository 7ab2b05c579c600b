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
