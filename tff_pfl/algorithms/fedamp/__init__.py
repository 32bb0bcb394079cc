"""FedAMP and HeurFedAMP: the round, and beside it the server's attention."""

from tff_pfl.algorithms.fedamp.round import fedamp, heur_fedamp

__all__ = ["fedamp", "heur_fedamp"]
