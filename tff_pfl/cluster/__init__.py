"""Finds workers of Dask clusters, and trains one experiment by them."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.cluster.errors import ClusterError as ClusterError
    from tff_pfl.cluster.recipes import Recipe as Recipe
    from tff_pfl.cluster.team import Team as Team
    from tff_pfl.cluster.workers import connected as connected
    from tff_pfl.cluster.workers import local as local
else:
    __getattr__, __dir__, __all__ = offer(__name__)
