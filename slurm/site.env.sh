# What differs from one cluster to the next: the one file that a site edits.
#
# Read by slurm/train.sbatch on the node. Reading it before submitting as well
#     . slurm/site.env.sh && sbatch slurm/train.sbatch job.toml
# makes sbatch see the SBATCH_ variables, and lets jobs be submitted from any folder.

export MGG_SITE="${BASH_SOURCE[0]:-$0}"
MGG_SITE="$(cd "$(dirname "$MGG_SITE")" && pwd)/$(basename "$MGG_SITE")"

# Modules: a compiler's runtime, and the MPI if it is the site's own.
# module load gcc openmpi

# The environment that `make setup` built (on a file system that the nodes see).
export MGG_VENV="${MGG_VENV:-$(cd "$(dirname "$MGG_SITE")/.." && pwd)/.venv}"

# How srun starts MPI: pmi2 for the mpich wheel in .venv, pmix for Open MPI (`srun --mpi=list` shows what there is).
export MGG_SRUN_MPI="${MGG_SRUN_MPI:-pmi2}"

# The site's own MPI library instead of the wheel's:
# export MPI4PY_LIBMPI=/path/to/libmpi.so.40

# What every job of this site asks for; options of sbatch go before these.
# export SBATCH_PARTITION=cpu
# export SBATCH_ACCOUNT=project
# export SBATCH_TIMELIMIT=01:00:00

# A fast folder of the node's own, for temporary files.
export TMPDIR="${MGG_SCRATCH:-${TMPDIR:-/tmp}}"
