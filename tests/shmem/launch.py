"""Run a command on ranks with the machine's own MPI: launch.py RANKS COMMAND..."""

import sys

from mgg_hpc.runtime import launch

if __name__ == "__main__":
    sys.exit(launch.run(sys.argv[2:], int(sys.argv[1]), mpi="system"))
