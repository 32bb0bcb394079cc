"""Attacks by clients: wrong uploads and wrong labels."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "named": ("ATTACKS",),
        "drawn": ("attackers_of", "drawn_attackers"),
        "uploads": ("label_flip", "noise", "scaled_uploads", "sign_flipped"),
    },
)
