"""Readers of single data sets, by name."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "sources": ("DATASETS", "NORMALIZATIONS", "DataNotFoundError", "load", "normalization"),
    },
)
