"""What people run around training."""
