"""What records of all measurements have in common; it needs no TensorFlow."""

import os
import statistics
from collections.abc import Sequence
from typing import Any


def hardware() -> dict[str, Any]:
    """The cores that this process may use, and the memory of the machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpus": len(os.sched_getaffinity(0)), "memory_gib": round(memory / 2**30, 1)}


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """The median and the ends of a measurement."""
    ends = {"median": statistics.median(seconds), "min": min(seconds), "max": max(seconds)}
    return {key: round(value, 6) for key, value in ends.items()}
