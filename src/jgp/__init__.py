"""Gaussian processes and probabilistic numerics in JAX."""
