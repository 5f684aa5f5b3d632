"""`mgg bench`: the speed of this machine, and what benchmarks outside the package share with it."""
