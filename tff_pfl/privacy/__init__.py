"""Differential privacy of clients: noise, and the accounting of epsilon."""

from tff_pfl.privacy.accounting import Accountant, PrivacyLoss, default_delta
from tff_pfl.privacy.discrete import DiscreteGaussian, Quantization, discrete_gaussian
from tff_pfl.privacy.distributed import NoisySumFactory, with_distributed_privacy
from tff_pfl.privacy.noise import adaptive_clipping, fixed_clipping, noise_of_mean
from tff_pfl.privacy.private import CLIPPINGS, with_privacy

__all__ = [
    "Accountant",
    "CLIPPINGS",
    "DiscreteGaussian",
    "NoisySumFactory",
    "PrivacyLoss",
    "Quantization",
    "adaptive_clipping",
    "default_delta",
    "discrete_gaussian",
    "fixed_clipping",
    "noise_of_mean",
    "with_distributed_privacy",
    "with_privacy",
]
