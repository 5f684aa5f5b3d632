"""Programs on vertices and edges in several libraries, for benchmarks/programs.py.

In processes of other libraries this folder is the package `programs`, beside worker.py.
"""
