"""Server-side maths: what finalizers are made of."""

from tff_pfl.server.updates import mean_update

__all__ = ["mean_update"]
