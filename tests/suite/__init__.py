"""The test suite itself: its seeds, its three sizes, and the program that runs it part by part (run.py)."""
