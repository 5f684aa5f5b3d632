"""Time of an epoch: traces, phases, and the share of a transfer that is hidden by sums."""
