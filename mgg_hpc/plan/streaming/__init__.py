"""Plans of rows that do not fit in memory: how they are cut, and the passes over their chunks."""
