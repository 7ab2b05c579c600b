#!/usr/bin/env bash
# sha256 of all lines below: 7b161b9673ee72301e324f7163b7a419c22e29f9df79f2009d120935aa7e0443
#
# One run of the cell
#   h200/gpt3-175b/tp2-pp16-dp1_mb1-gb128-bf16-zero1-sp-recompute_02c848fd
#
# You can give it to sbatch by hand; the workflow then takes its result.
#
#SBATCH --job-name=triptych-02c848fd
#SBATCH --partition=h200
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=8
#SBATCH --cpus-per-task=12
#SBATCH --gpus-per-node=h200:8
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --time=197
#SBATCH --signal=B:USR2@60
#SBATCH --requeue

# ------------------------------------------------------------------------ where things are
# shellcheck disable=SC2016  # dollar signs in these values are not variables
root=/srv/triptych
code=/srv/triptych/results/code/1000/0123456789abcdef.zip
run_directory=/srv/triptych/results/cells/h200/gpt3-175b/tp2-pp16-dp1_mb1-gb128-bf16-zero1-sp-recompute_02c848fd/run1
python=/srv/triptych/.venv/bin/python
cell="$run_directory/cell.json"
logs="$run_directory/logs"
# In an array the job is a task. The array's script passes the task's id.
job=${1:-${SLURM_JOB_ID:?"is not set: give this script to sbatch"}}
# An array's copy of this script lies beside a link to its run. In any other job, Slurm runs a copy
# and tells the original's path. If Slurm does not tell it, the run directory must at least exist.
if [ -n "${1-}" ]; then
    lies_in=${0%.sh}
else
    lies_in=$(timeout 60 scontrol show job "$job" 2>/dev/null |
        sed -n 's|^ *Command=\(/.*\)/.*|\1|p')
fi
lies_in=${lies_in:-$run_directory}
# If results were copied, the copy's job must not write into the original.
if ! [ "$lies_in" -ef "$run_directory" ]; then
    printf 'triptych: this script lies in %s, but was rendered for %s: the results were moved or ' \
        "$lies_in" "$run_directory" >&2
    echo "copied. Delete it, and snakemake renders it anew" >&2
    exit 76
fi
if ! [ -r "$code" ]; then
    printf 'triptych: %s, the code of this job, is not there. Delete this script, and snakemake ' \
        "$code" >&2
    echo "renders it anew" >&2
    exit 78
fi
cd -- "$root" || exit 72
mkdir -p -- "$logs" "$run_directory/telemetry" || exit 73

# ------------------------------------------------------------------------ the site's environment
export NCCL_DEBUG=WARN
# The repository may change while the job waits and runs, so its code is imported from a copy, and
# not from the working directory, which Python would search first.
export PYTHONPATH="$code${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1
export PYTHONUNBUFFERED=1
# What git said of the code when it was copied.
export TRIPTYCH_COMMIT=5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e5ca1ab1e
export TRIPTYCH_UNCOMMITTED_CHANGES=
# The sampler and ranks record the id of their job.
export TRIPTYCH_JOB_ID=$job
# Ranks number GPUs as the driver and the sampler do.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# submitit's TorchDistributedEnvironment needs it.
export SUBMITIT_EXECUTOR=slurm
# srun does not take this value from sbatch by itself.
export SRUN_CPUS_PER_TASK=12

# ------------------------------------------------------------------------ how processes start
# Arrays, not functions: then $! is the launcher's process id, so that the launcher can be ended.
# One process a node, beside other steps that run there.
on_every_node=(
    srun --overlap --nodes=4 --ntasks=4 --ntasks-per-node=1
    --cpus-per-task=1 --gpus-per-node=h200:8
    "$python"
)
# One rank a GPU, each with its watcher. When one rank dies, the launcher ends the others.
on_every_gpu=(
    srun --kill-on-bad-exit=1 --nodes=4 --ntasks=32
    --ntasks-per-node=8 --gpus-per-node=h200:8
    "$python"
)
each_rank=(
    -m workflow_lib.launch.job.rank "$run_directory"
    -m workflow_lib.trainers.native "$cell"
)
# One process on this node.
here=("$python")

# ------------------------------------------------------------------------ however it ends
stage=environment
helper=
telemetry=
training=
training_exit=
telemetry_exit=

# ask_to_end PID sends SIGTERM to a child. Between its fork and its exec a child is a copy of this
# script, whose traps would lose the signal: then this waits for the exec.
# shellcheck disable=SC2329  # finish calls it
ask_to_end() {
    local patience=1000
    while [ "$patience" -gt 0 ] && cmp -s "/proc/$$/cmdline" "/proc/$1/cmdline"; do
        patience=$((patience - 1))
        sleep 0.01
    done
    kill -TERM "$1" 2>/dev/null
}

# shellcheck disable=SC2329  # the trap below calls it
finish() {
    trap '' TERM INT USR2
    [ -z "$helper" ] || ask_to_end "$helper"
    if [ -n "$training" ] && [ -z "$training_exit" ]; then
        ask_to_end "$training"
        wait "$training"
        training_exit=$?
    fi
    if [ -n "$telemetry" ]; then
        touch -- "$run_directory/telemetry/stop"
        patience=200
        while kill -0 "$telemetry" 2>/dev/null; do
            [ "$patience" -gt 0 ] || kill -TERM "$telemetry"
            # A process that hangs ends only by SIGKILL.
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
# Only in the script's own process: a child has the same trap until it becomes another program.
# Not "… || finish": bash 5.2 goes on behind it in a child that a signal ended.
trap 'if [ "$BASHPID" -eq "$$" ]; then finish; fi' EXIT
hear_signals() {
    trap 'stage=interrupted; exit 143' TERM INT
    trap 'stage=time_limit; exit 140' USR2
}
hear_signals

# start NAME COMMAND… starts a command in the background and sets the variable NAME to its process
# id. A signal that comes meanwhile is handled afterwards: finish can only end processes whose ids
# are known.
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
# The script is passed as standard input, so that the job records the checksum of what ran.
"${here[@]}" -m workflow_lib.launch.job.node begin "$run_directory" --job "$job" \
    --scheduler slurm <"$0" || {
    # 75: another job owns this run, so this one must not write there.
    [ "$?" -ne 75 ] || trap - EXIT
    exit 1
}

stage=telemetry
start telemetry "${on_every_node[@]}" -m workflow_lib.telemetry "$cell" >"$logs/telemetry.log" 2>&1
# Bash handles no signal while it runs a command in the foreground, only while it waits for one.
start helper "${here[@]}" -m workflow_lib.launch.job.node wait-for-telemetry "$run_directory" \
    --process "$telemetry"
wait "$helper" || { helper=; exit 1; }
helper=

stage=baseline
start helper sleep 30.0
wait "$helper"
helper=
# Training without telemetry would be no result, so it does not start.
kill -0 "$telemetry" 2>/dev/null || wait "$telemetry" || exit 1

stage=training
start training "${on_every_gpu[@]}" "${each_rank[@]}" >"$logs/training.log" 2>&1
# It ends training if the run can no longer become a result.
start helper "${here[@]}" -m workflow_lib.launch.job.node stop-early "$run_directory" \
    --process "$telemetry" --training "$training"
wait "$training"
training_exit=$?
# Bash prints a line for each background process that is killed.
{ ask_to_end "$helper"; wait "$helper"; } 2>/dev/null
helper=
[ "$training_exit" -eq 0 ] || exit 1

stage=complete
exit 0
