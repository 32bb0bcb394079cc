"""Attacks by clients: wrong uploads and wrong labels."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.attacks.drawn import attackers_of as attackers_of
    from tff_pfl.attacks.drawn import drawn_attackers as drawn_attackers
    from tff_pfl.attacks.named import ATTACKS as ATTACKS
    from tff_pfl.attacks.uploads import label_flip as label_flip
    from tff_pfl.attacks.uploads import noise as noise
    from tff_pfl.attacks.uploads import scaled_uploads as scaled_uploads
    from tff_pfl.attacks.uploads import sign_flipped as sign_flipped
else:
    __getattr__, __dir__, __all__ = offer(__name__)
