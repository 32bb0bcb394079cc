"""FedFomo: the round, and beside it the server's choice of models."""

from tff_pfl.algorithms.fedfomo.round import fedfomo

__all__ = ["fedfomo"]
