"""How rows of other ranks, rows by number, and rows of stores reach the kernels of a GPU."""
