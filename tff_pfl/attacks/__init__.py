"""Attacks by clients: wrong uploads and wrong labels."""

from tff_pfl.attacks.attackers import ATTACKS
from tff_pfl.attacks.inner_product import inner_product
from tff_pfl.attacks.uploads import label_flip, noise, scaled_uploads, sign_flipped
from tff_pfl.clients.attackers import attackers_of, drawn_attackers

__all__ = [
    "ATTACKS",
    "attackers_of",
    "drawn_attackers",
    "inner_product",
    "label_flip",
    "noise",
    "scaled_uploads",
    "sign_flipped",
]
