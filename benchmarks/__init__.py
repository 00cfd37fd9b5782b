"""Comparisons of inference methods, and of speed; never imported by jgp."""
