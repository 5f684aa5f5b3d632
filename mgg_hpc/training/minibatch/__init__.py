"""Training on mini-batches with sampled neighbourhoods (train.mode = "sampled")."""
