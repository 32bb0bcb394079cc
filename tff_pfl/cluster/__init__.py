"""Trains one experiment by the workers of a Dask cluster."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.cluster.site import Site as Site
    from tff_pfl.cluster.team import Team as Team
else:
    __getattr__, __dir__, __all__ = offer(__name__)
