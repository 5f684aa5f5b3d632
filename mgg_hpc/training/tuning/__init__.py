"""The search for ps, dist and wpb: while a job trains, and before it."""
