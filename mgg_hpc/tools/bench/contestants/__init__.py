"""What runs in the contestants' processes. A peer's module imports nothing of this package: it may not be there."""
