"""Shows in figures that a machine's GPU does its work: what `gpu_check.py` runs."""
