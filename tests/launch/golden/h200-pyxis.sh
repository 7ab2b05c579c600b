#!/usr/bin/env bash
# sha256 of all lines below: 0a13ce1e2d4fcb48a422230c929e3cb54d881a30b5343369a495b637ed53bf2d
#
# One run of the cell
#   h200/gpt3-175b/tp2-pp16-dp1_mb1-gb128-bf16-zero1-sp-recompute_02c848fd
#
# It can be given to sbatch by hand; the workflow then takes its result.
#
#SBATCH --job-name=triptych-02c848fd
#SBATCH --partition=h200
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --gpus-per-node=h200:8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=33
#SBATCH --signal=B:USR2@60
#SBATCH --requeue

# ------------------------------------------------------------------------ where things are
# shellcheck disable=SC2016  # what looks like a variable within a value is none
root=/srv/triptych
run_directory=/srv/triptych/results/cells/h200/gpt3-175b/tp2-pp16-dp1_mb1-gb128-bf16-zero1-sp-recompute_02c848fd/run1
python=python3
cell="$run_directory/cell.json"
logs="$run_directory/logs"
# In an array the job is one of its tasks, which the array's script names.
job=${1:-${SLURM_JOB_ID:?"is not set: give this script to sbatch"}}
# An array's script lies beside a link to its run. Slurm runs a copy of any other, and knows of
# what; where it does not say so, the directory must at least be there.
if [ -n "${1-}" ]; then
    lies_in=${0%.sh}
else
    lies_in=$(timeout 60 scontrol show job "$job" 2>/dev/null |
        sed -n 's|^ *Command=\(/.*\)/.*|\1|p')
fi
lies_in=${lies_in:-$run_directory}
# Of results that were copied, the copy must not write into the original.
if ! [ "$lies_in" -ef "$run_directory" ]; then
    printf 'triptych: this script lies in %s, but was rendered for %s: the results were moved or ' \
        "$lies_in" "$run_directory" >&2
    echo "copied. Delete it, and snakemake renders it anew" >&2
    exit 76
fi
cd -- "$root" || exit 72
mkdir -p -- "$logs" "$run_directory/telemetry" || exit 73

# ------------------------------------------------------------------------ the site's environment
export NCCL_DEBUG=WARN
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
# Telemetry and ranks write down whose they are.
export TRIPTYCH_JOB_ID=$job
# Ranks count GPUs as the driver and the sampler do.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# What submitit's TorchDistributedEnvironment goes by.
export SUBMITIT_EXECUTOR=slurm
# srun does not take this over from sbatch by itself.
export SRUN_CPUS_PER_TASK=12

# ------------------------------------------------------------------------ how processes start
# The container, and what it sees of the host under the same paths.
container=(
    --container-image='nvcr.io#nvidia/pytorch:26.01-py3'
    --container-mounts='/srv/triptych:/srv/triptych,/scratch:/scratch,/data sets:/data sets'
)

# Arrays, not functions: the process that $! names is then the launcher, which can be ended.
# One process a node, beside whatever else runs there.
on_every_node=(
    srun --overlap --nodes=4 --ntasks=4 --ntasks-per-node=1
    --cpus-per-task=1 --gpus-per-node=h200:8
    "${container[@]}" "$python"
)
# One process a GPU, and one that sees how it ends. When one dies, the others are ended.
on_every_gpu=(
    srun --kill-on-bad-exit=1 --nodes=4 --ntasks=32
    --ntasks-per-node=8 --gpus-per-node=h200:8
    "${container[@]}" "$python"
)
each_rank=(
    -m workflow_lib.launch.job.rank "$run_directory"
    -m workflow_lib.training "$cell"
)
# One process beside this script, in the first node's own Python.
here=("$python")

# ------------------------------------------------------------------------ however it ends
stage=environment
helper=
telemetry=
training=
training_exit=
telemetry_exit=

# shellcheck disable=SC2329  # the trap below calls it
finish() {
    trap '' TERM INT USR2
    [ -z "$helper" ] || kill "$helper" 2>/dev/null
    if [ -n "$training" ] && [ -z "$training_exit" ]; then
        kill -TERM "$training" 2>/dev/null
        wait "$training"
        training_exit=$?
    fi
    if [ -n "$telemetry" ]; then
        touch -- "$run_directory/telemetry/stop"
        patience=200
        while kill -0 "$telemetry" 2>/dev/null; do
            [ "$patience" -gt 0 ] || kill -TERM "$telemetry"
            # One that hangs hears nothing else.
            [ "$patience" -gt -100 ] || kill -KILL "$telemetry"
            patience=$((patience - 1))
            sleep 0.1
        done
        wait "$telemetry"
        telemetry_exit=$?
    fi
    "${here[@]}" -m workflow_lib.launch.job.node end "$run_directory" --job "$job" \
        --stage "$stage" --training-exit "$training_exit" --telemetry-exit "$telemetry_exit"
}
# Not in a process of this script that is ended before it is another program: it has the traps, too.
trap '[ "$BASHPID" -ne "$$" ] || finish' EXIT
hear_signals() {
    trap 'stage=interrupted; exit 143' TERM INT
    trap 'stage=time_limit; exit 140' USR2
}
hear_signals

# Starts a command beside this script; the variable of that name then has its process. A signal that
# comes in between is heard after it, since what has no name yet would go on.
start() {
    local name=$1 heard=
    shift
    trap 'heard=TERM' TERM INT
    trap 'heard=USR2' USR2
    "$@" &
    printf -v "$name" %s "$!"
    hear_signals
    [ -z "$heard" ] || kill -s "$heard" "$$"
}

# ------------------------------------------------------------------------ the run
# The script itself goes in, so that what ran can be told from what was rendered.
"${here[@]}" -m workflow_lib.launch.job.node begin "$run_directory" --job "$job" \
    --scheduler slurm <"$0" || {
    # 75: another job has this run, and what it writes is not for this one to touch.
    [ "$?" -ne 75 ] || trap - EXIT
    exit 1
}

stage=telemetry
start telemetry "${on_every_node[@]}" -m workflow_lib.telemetry "$cell" >"$logs/telemetry.log" 2>&1
# Bash hears no signal while it runs a command, only while it waits for one.
start helper "${here[@]}" -m workflow_lib.launch.job.node wait-for-telemetry "$run_directory" \
    --process "$telemetry"
wait "$helper" || { helper=; exit 1; }
helper=

stage=baseline
start helper sleep 30.0
wait "$helper"
helper=
# Hours that nobody watched would be lost.
kill -0 "$telemetry" 2>/dev/null || wait "$telemetry" || exit 1

stage=training
start training "${on_every_gpu[@]}" "${each_rank[@]}" >"$logs/training.log" 2>&1
# It ends training where the run cannot become a result any more.
start helper "${here[@]}" -m workflow_lib.launch.job.node stop-early "$run_directory" \
    --process "$telemetry" --training "$training"
wait "$training"
training_exit=$?
# Bash says of each process that it ends itself that it ended.
{ kill "$helper"; wait "$helper"; } 2>/dev/null
helper=
[ "$training_exit" -eq 0 ] || exit 1

stage=complete
exit 0
