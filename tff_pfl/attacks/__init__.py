"""Clients that send what they should not."""

from tff_pfl.attacks.inner_product import inner_product
from tff_pfl.attacks.labels import label_flip
from tff_pfl.attacks.registry import ATTACKS
from tff_pfl.attacks.uploads import noise, scaled_uploads, sign_flipped
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
