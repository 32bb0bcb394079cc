"""FedPAC, with the alignment of features and the server's combination of heads."""

from tff_pfl.algorithms.fedpac.round import fedpac

__all__ = ["fedpac"]
