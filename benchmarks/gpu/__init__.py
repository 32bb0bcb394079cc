"""Checks that a GPU computes correctly, and measures it: `python -m benchmarks.gpu`."""
