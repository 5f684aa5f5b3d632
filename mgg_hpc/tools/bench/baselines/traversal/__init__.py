"""What benchmarks/traversal.py runs in processes of its own: this package, other libraries, and GAPBS."""
