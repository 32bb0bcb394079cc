"""FedAMP and HeurFedAMP, with the server's attention."""

from tff_pfl.algorithms.fedamp.round import fedamp, heur_fedamp

__all__ = ["fedamp", "heur_fedamp"]
