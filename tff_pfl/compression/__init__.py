"""Upload compression with error feedback."""

from tff_pfl.compression.compressed import Compensated, compressed
from tff_pfl.compression.compressors import (
    COMPRESSORS,
    Compressor,
    Quantized,
    Rescaled,
    Sparse,
    half,
    quantized,
    rescaled,
    top_k,
)

__all__ = [
    "COMPRESSORS",
    "Compensated",
    "Compressor",
    "Quantized",
    "Rescaled",
    "Sparse",
    "compressed",
    "half",
    "quantized",
    "rescaled",
    "top_k",
]
