"""The scripts of slurm/ on a real Slurm."""
