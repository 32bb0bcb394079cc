"""IFCA: the round, and beside it the server's clusters."""

from tff_pfl.algorithms.ifca.round import ifca

__all__ = ["ifca"]
