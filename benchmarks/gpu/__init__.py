"""Checks and measures a machine's GPU, for `gpu_check.py`."""
