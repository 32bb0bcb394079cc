"""Configs: all keys, what is right in them, and what a run is made of by them."""

from tff_pfl.experiment.config.build import (
    build_algorithm,
    build_dataset,
    build_early_stop,
    build_local,
    build_model,
    build_new_clients_evaluation,
    build_process,
    check_split,
    evaluation_options,
    hold_out,
    participation,
)
from tff_pfl.experiment.config.check import check_config, number_ranges
from tff_pfl.experiment.config.defaults import default_config
from tff_pfl.experiment.config.errors import ConfigError, ImportsError
from tff_pfl.experiment.config.flags import parse_flags
from tff_pfl.experiment.config.options import complete
from tff_pfl.experiment.config.private import check_same_promise, privacy_loss
from tff_pfl.experiment.config.saved import added_settings, config_of_run

__all__ = [
    "ConfigError",
    "ImportsError",
    "added_settings",
    "build_algorithm",
    "build_dataset",
    "build_early_stop",
    "build_local",
    "build_model",
    "build_new_clients_evaluation",
    "build_process",
    "check_config",
    "check_same_promise",
    "check_split",
    "complete",
    "config_of_run",
    "default_config",
    "evaluation_options",
    "hold_out",
    "number_ranges",
    "parse_flags",
    "participation",
    "privacy_loss",
]
