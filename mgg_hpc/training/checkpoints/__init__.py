"""Saved results of a training: the chosen weights, and checkpoints to resume from."""
