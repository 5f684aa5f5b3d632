# What differs from one cluster to the next: the one file that a site edits.
#
# The scripts of this folder read it on the node, and `mgg submit` reads it before it submits. Read it before sbatch too,
#     . slurm/site.env.sh && sbatch slurm/train.sbatch job.toml
# and sbatch sees the SBATCH_ variables, and jobs can be submitted from any folder.

# This folder.
export MGG_SLURM="${BASH_SOURCE[0]:-$0}"
MGG_SLURM="$(cd "$(dirname "$MGG_SLURM")" && pwd)"

# Modules: a compiler's runtime, and the MPI if it is the site's own.
# module load gcc openmpi

# The environment that `make setup` built (on a file system that the nodes see).
export MGG_VENV="${MGG_VENV:-$(dirname "$MGG_SLURM")/.venv}"

# How srun starts MPI: pmi2 for the mpich wheel in .venv, pmix for Open MPI (`srun --mpi=list` shows what there is).
export MGG_SRUN_MPI="${MGG_SRUN_MPI:-pmi2}"

# The site's own MPI library instead of the wheel's:
# export MPI4PY_LIBMPI=/path/to/libmpi.so.40

# What every job of this site asks for; options of sbatch and of mgg submit go before these.
# export SBATCH_PARTITION=cpu
# export SBATCH_ACCOUNT=project
# export SBATCH_TIMELIMIT=01:00:00

# A fast folder of the node's own, for temporary files.
export TMPDIR="${MGG_SCRATCH:-${TMPDIR:-/tmp}}"
