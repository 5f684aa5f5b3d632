"""The table of cases on a GPU, or on the shim: PEs that one process plays."""
