"""PGFed and its variants, with the server's linear risks."""

from tff_pfl.algorithms.pgfed.round import pgfed, pgfed_ce, pgfedmo, pgfedmo_ce

__all__ = ["pgfed", "pgfed_ce", "pgfedmo", "pgfedmo_ce"]
