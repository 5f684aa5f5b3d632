"""`mgg bench`: this package and its baselines, in turns, on the same inputs, threads and pages.

Every worker, this package included, is a process of its own (baselines/) that takes requests in JSON lines; so
a baseline may live in another environment, all have the same page policy, and each has its own peak of memory.
"""
