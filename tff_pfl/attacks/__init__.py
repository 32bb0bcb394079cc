"""Clients that send what they should not."""

from tff_pfl.attacks.uploads import scaled_uploads

__all__ = ["scaled_uploads"]
