"""Clients that send what they should not."""

from tff_pfl.attacks.uploads import ATTACKS, scaled_uploads

__all__ = ["ATTACKS", "scaled_uploads"]
