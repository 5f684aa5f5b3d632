"""HDF5 files: read by a reader of the few structures that graph files have, written by the HDF5 library.

The library trusts the structures of a file: of 24,000 damaged graph files whose checksums had been put right it crashed
on 75 and hung on 4 (HDF5 2.0.0, tests/data/graph_mutants.py). So it opens no file that it has not written itself.
"""
