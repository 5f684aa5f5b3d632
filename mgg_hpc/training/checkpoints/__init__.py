"""What a run keeps of its training: chosen weights, and checkpoints from which it can be resumed."""
