"""FedPAC, with the server's combination of heads."""

from tff_pfl.algorithms.fedpac.round import fedpac

__all__ = ["fedpac"]
