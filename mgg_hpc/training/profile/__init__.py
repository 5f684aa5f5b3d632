"""Where the time of an epoch goes: traces, spans, and the share of an exchange that sums hide."""
