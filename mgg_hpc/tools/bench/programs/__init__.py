"""What benchmarks/programs.py and `mgg study programs` measure of programs on vertices and edges."""
