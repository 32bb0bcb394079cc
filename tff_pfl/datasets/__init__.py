"""Readers of single data sets, by name."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.datasets.sources import DATASETS as DATASETS
    from tff_pfl.datasets.sources import NORMALIZATIONS as NORMALIZATIONS
    from tff_pfl.datasets.sources import DataNotFoundError as DataNotFoundError
    from tff_pfl.datasets.sources import load as load
    from tff_pfl.datasets.sources import normalization as normalization
else:
    __getattr__, __dir__, __all__ = offer(__name__)
