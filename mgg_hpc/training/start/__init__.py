"""Building blocks of a job: its input rows, and how its graph is streamed."""
