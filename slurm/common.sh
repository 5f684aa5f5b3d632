# shellcheck shell=bash
# What the scripts of this folder have in common. Each reads this file, and then calls `on_ranks`.

# A wrong input ends the job as `mgg` would: with one line and code 2.
stop() {
    echo "mgg: error: $*" >&2
    exit 2
}

# on_ranks train|tune JOBFILE [options]: runs the verb of mgg on all tasks of the job, and ends with its code.
#
# Signals reach the ranks in two ways. On scancel, at the time limit and on preemption, Slurm itself sends SIGTERM to the
# ranks. With --signal=B:USR1@120 it sends SIGUSR1 to this shell alone, 120 seconds before the time limit, and `pass_on`
# hands it to the ranks. Either way the ranks save a checkpoint after the epoch and end with code 3. srun runs in the
# background because a shell runs its traps between commands only, and `wait` is the one that a signal interrupts.
on_ranks() {
    local verb=$1
    shift
    # shellcheck source=site.env.sh
    . "$MGG_SLURM/site.env.sh"
    [ $# -ge 1 ] || stop "no job file: sbatch [options] slurm/$verb.sbatch job.toml"
    local job=$1
    shift
    [ -f "$job" ] || stop "$job: no such job file in $PWD; paths are as seen from the folder of sbatch"
    [ -x "$MGG_VENV/bin/mgg" ] || stop "$MGG_VENV has no mgg: run make setup there, or set MGG_VENV in $MGG_SLURM/site.env.sh"
    command -v srun >/dev/null || stop "no srun on $(hostname): this script is for sbatch; without Slurm use mgg launch"
    check_tasks
    # Every rank sees all GPUs that the job has on its node, and so can read its peers' memory through pointers.
    # (srun --gpu-bind=none would show it those of other jobs too.)
    unset SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_GPU_BIND

    # Every rank checks that it is one of as many as Slurm was asked for; the first records the job's exit code.
    folder=$(mktemp -d "$TMPDIR/mgg-launch-XXXXXX")
    trap 'rm -rf "$folder"' EXIT
    export MGG_RANKS=$SLURM_NTASKS MGG_STATUS=$folder/status
    export OMP_NUM_THREADS=${SLURM_CPUS_PER_TASK:-1}

    local options=(--set "run.threads=$OMP_NUM_THREADS")
    # A job that Slurm may start again goes on with its run.
    if may_requeue; then options+=(--set "run.resume=auto"); fi
    ended_by='' interrupted=''
    trap 'interrupted=1; ended_by=${ended_by:-limit}; pass_on' USR1
    trap 'interrupted=1; ended_by=scancel' TERM
    srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_NTASKS" --cpus-per-task="$OMP_NUM_THREADS" \
        --mpi="$MGG_SRUN_MPI" --kill-on-bad-exit=1 ${SLURM_GPUS_ON_NODE:+--gpus-per-node="$SLURM_GPUS_ON_NODE"} \
        "$MGG_VENV/bin/mgg" "$verb" "${options[@]}" "$@" -- "$job" &
    srun=$!
    local code
    wait_for_ranks && code=0 || code=$?
    if [ -s "$MGG_STATUS" ]; then code=$(cat "$MGG_STATUS"); fi
    if [ "$code" = 3 ] && [ "$ended_by" = limit ]; then requeue; fi
    exit "$code"
}

# The number of tasks has to be known, and on GPUs each task drives one.
check_tasks() {
    [ -n "${SLURM_NTASKS:-}" ] || stop "Slurm was not asked for tasks, of which each is a rank: sbatch --ntasks=4"
    [ -n "${SLURM_GPUS_ON_NODE:-}" ] || return 0
    local ranks=$((SLURM_JOB_NUM_NODES * SLURM_GPUS_ON_NODE))
    [ "$SLURM_NTASKS" = "$ranks" ] ||
        stop "$SLURM_NTASKS tasks for $SLURM_JOB_NUM_NODES nodes of $SLURM_GPUS_ON_NODE GPUs; a rank drives one GPU:" \
            "sbatch --ntasks-per-node=$SLURM_GPUS_ON_NODE (mgg submit --gpus $SLURM_GPUS_ON_NODE)"
}

# Returns srun's code. A signal interrupts `wait`, which is then called again.
wait_for_ranks() {
    local code
    while true; do
        interrupted=''
        wait "$srun" && code=0 || code=$?
        [ -n "$interrupted" ] || return "$code"
    done
}

# Passes SIGUSR1 to all ranks, through srun. Before a rank handles signals this would kill it, so the first rank, which
# runs beside this shell, must have said that it does.
pass_on() {
    until [ -e "$MGG_STATUS.listens.0" ] || ! kill -0 "$srun" 2>/dev/null; do sleep 0.1; done
    kill -USR1 "$srun" 2>/dev/null || true
}

# Whether Slurm may start this job again (sbatch --requeue), or has done so: it may be too busy to answer just then.
may_requeue() {
    [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || return 0
    case " $(scontrol show job --oneliner "$SLURM_JOB_ID" 2>/dev/null) " in
    *" Requeue=1 "*) return 0 ;;
    *) return 1 ;;
    esac
}

# Puts this job back into the queue; Slurm ends this script then.
requeue() {
    if ! may_requeue; then
        echo "mgg: saved before the time limit; sbatch --requeue would go on by itself" >&2
        return
    fi
    echo "mgg: saved before the time limit; back into the queue" >&2
    rm -rf "$folder"
    trap '' TERM
    scontrol requeue "$SLURM_JOB_ID" || stop "Slurm did not requeue the job; submit it again, and it goes on"
}
