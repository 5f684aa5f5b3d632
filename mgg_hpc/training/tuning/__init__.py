"""Search for ps, dist and wpb, while a job trains or before."""
