"""Uploads of fewer bytes: what travels, and what of it comes to nothing."""

from tff_pfl.compression.compressed import Compensated, compressed
from tff_pfl.compression.compressor import COMPRESSORS, Compressor, Rescaled, rescaled
from tff_pfl.compression.compressors import Quantized, Sparse, half, quantized, top_k

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
