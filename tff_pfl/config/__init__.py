"""Defines the keys of configs, checks their values, and builds runs from configs."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.config.build import build_algorithm as build_algorithm
    from tff_pfl.config.build import build_dataset as build_dataset
    from tff_pfl.config.build import build_model as build_model
    from tff_pfl.config.build import experiment_of as experiment_of
    from tff_pfl.config.check import check_config as check_config
    from tff_pfl.config.check import config_of_run as config_of_run
    from tff_pfl.config.check import number_ranges as number_ranges
    from tff_pfl.config.errors import ConfigError as ConfigError
    from tff_pfl.config.flags import define_import_flags as define_import_flags
    from tff_pfl.config.flags import parse_flags as parse_flags
    from tff_pfl.config.flags import read_config as read_config
    from tff_pfl.config.flags import settings_of as settings_of
    from tff_pfl.config.flags import without_settings as without_settings
    from tff_pfl.config.interruption import exit_code_of as exit_code_of
    from tff_pfl.config.interruption import interruptible as interruptible
    from tff_pfl.config.interruption import user_errors as user_errors
    from tff_pfl.config.options import complete as complete
    from tff_pfl.config.options import default_config as default_config
    from tff_pfl.config.parts import build_local as build_local
    from tff_pfl.config.programs import evaluate_program as evaluate_program
    from tff_pfl.config.programs import export_program as export_program
    from tff_pfl.config.programs import run_of as run_of
    from tff_pfl.config.programs import run_program as run_program
    from tff_pfl.config.unused import unused_settings as unused_settings
else:
    __getattr__, __dir__, __all__ = offer(__name__)
