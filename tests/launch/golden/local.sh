#!/usr/bin/env bash
# sha256 of all lines below: cc1cd67f7a507df180a89582830710653e1d62607873dede978a36cc3d0ed432
#
# One run of the cell
#   local/gpt3-tiny/tp1-pp1-dp2_mb2-gb16-fp32-zero1_61f5286c
#
# It can be given to bash by hand; the workflow then takes its result.

# ------------------------------------------------------------------------ where things are
# shellcheck disable=SC2016  # what looks like a variable within a value is none
root=/srv/triptych
run_directory=/srv/triptych/results/cells/local/gpt3-tiny/tp1-pp1-dp2_mb2-gb16-fp32-zero1_61f5286c/run1
python=/srv/triptych/.venv/bin/python
cell="$run_directory/cell.json"
logs="$run_directory/logs"
# Started by hand, the job is this process.
job=${SUBMITIT_LOCAL_JOB_ID:-$$}
lies_in=$(dirname -- "$0")
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
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
# Telemetry and ranks write down whose they are.
export TRIPTYCH_JOB_ID=$job
# Ranks count GPUs as the driver and the sampler do.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
# Ranks end when this script is gone.
export TRIPTYCH_JOB_PROCESS=$$

# ------------------------------------------------------------------------ how processes start
# Arrays, not functions: the process that $! names is then the launcher, which can be ended.
# One process a node, beside whatever else runs there.
on_every_node=(
    "$python"
)
# One process a GPU, and one that sees how it ends. When one dies, the others are ended.
on_every_gpu=(
    "$python" -m torch.distributed.run --standalone --nproc-per-node=2
)
each_rank=(
    -m workflow_lib.launch.job.rank "$run_directory"
    -m workflow_lib.training "$cell" --tokens /srv/triptych/results/data/python-sources/tokens.json
)
# Of two dollar signs torch.distributed.run makes one, and of some words behind one a number.
each_rank=("${each_rank[@]//\$/\$\$}")
# One process beside this script.
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
    --scheduler local <"$0" || {
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
start helper sleep 2.0
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
