"""pFedHN, pFedHN-PC and PLGU-GHN, with the server's hypernetwork."""

from tff_pfl.algorithms.pfedhn.round import pfedhn, pfedhn_pc, plgu_ghn

__all__ = ["pfedhn", "pfedhn_pc", "plgu_ghn"]
