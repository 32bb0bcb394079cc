"""Differential privacy of clients: noise, and what it amounts to."""

from tff_pfl.privacy.accounting import SAMPLINGS, Accountant, PrivacyLoss, default_delta
from tff_pfl.privacy.noise import adaptive_clipping, fixed_clipping, noise_of_mean
from tff_pfl.privacy.private import CLIPPINGS, with_privacy

__all__ = [
    "Accountant",
    "CLIPPINGS",
    "PrivacyLoss",
    "SAMPLINGS",
    "adaptive_clipping",
    "default_delta",
    "fixed_clipping",
    "noise_of_mean",
    "with_privacy",
]
