"""Floco, with the assignment of clients to points of the simplex."""

from tff_pfl.algorithms.floco.round import floco

__all__ = ["floco"]
