"""Graphs: in memory, in HDF5 files, and the formats they come from."""
