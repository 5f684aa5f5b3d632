"""What runs in the workers' processes. A peer's module imports nothing of this package: it may not be there."""
