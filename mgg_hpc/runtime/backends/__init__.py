"""Storage and kernels behind one seam (base.py), chosen by name."""
