"""Defines studies of many runs, tunes their settings, and runs them."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.cluster.errors import ClusterError as ClusterError
    from tff_pfl.studies.check import check_settings as check_settings
    from tff_pfl.studies.engines import Engine as Engine
    from tff_pfl.studies.engines import open_engine as open_engine
    from tff_pfl.studies.experiments import compare as compare
    from tff_pfl.studies.study import Search as Search
    from tff_pfl.studies.study import Settings as Settings
    from tff_pfl.studies.study import Study as Study
    from tff_pfl.studies.study import Training as Training
    from tff_pfl.studies.study import Tuning as Tuning
    from tff_pfl.studies.study import Variant as Variant
    from tff_pfl.studies.study import draws as draws
    from tff_pfl.studies.study import grid as grid
    from tff_pfl.studies.study import load_study as load_study
    from tff_pfl.studies.study import log_uniform as log_uniform
    from tff_pfl.studies.study import one_of as one_of
    from tff_pfl.studies.study import study_of_methods as study_of_methods
    from tff_pfl.studies.study import uniform as uniform
    from tff_pfl.studies.sweep import locked_results as locked_results
    from tff_pfl.studies.sweep import run_study as run_study
else:
    __getattr__, __dir__, __all__ = offer(__name__)
