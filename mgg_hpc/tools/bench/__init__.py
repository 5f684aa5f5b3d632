"""`mgg bench`: this package and its peers, in turns, on the same inputs, threads and pages.

Every worker, this package included, is a process of its own (baselines/), told what to do in JSON lines; so
a peer may live in another environment, all have the same page policy, and each has its own peak of memory.
"""
