"""Registers all attacks by name."""

from tff_pfl.attacks import inner_product, uploads  # noqa: F401  They register their attacks.
from tff_pfl.attacks.attackers import ATTACKS

__all__ = ["ATTACKS"]
