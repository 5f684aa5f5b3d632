"""Training epochs, beside other libraries'."""
