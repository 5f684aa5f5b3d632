"""Training, prediction, metrics and run folders."""
