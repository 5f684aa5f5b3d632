"""The floors of mgg_hpc, from the top down: each imports only from those below it."""

# Modules and packages of a set stand on the same floor.
FLOORS: list[str | set[str]] = [
    "__main__",
    "cli",
    "tools",
    "training",
    {"nn", "traversal"},
    "runtime",
    "plan",
    "data",
    "config",
    "sizes",
    "errors",
]
