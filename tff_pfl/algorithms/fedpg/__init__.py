"""FedPG and S-FedPG, with the server's search for directions and steps."""

from tff_pfl.algorithms.fedpg.round import fedpg
from tff_pfl.algorithms.fedpg.search import s_fedpg

__all__ = ["fedpg", "s_fedpg"]
