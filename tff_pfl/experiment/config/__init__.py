"""Configs: all keys, what is right in them, and what a run is made of by them."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "build": (
            "build_algorithm",
            "build_dataset",
            "build_early_stop",
            "build_model",
            "build_new_clients_evaluation",
            "build_process",
            "evaluation_options",
            "hold_out",
            "participation",
        ),
        "check": ("check_config", "number_ranges"),
        "defaults": ("default_config",),
        "effect": ("without_effect",),
        "errors": ("ConfigError", "ImportsError"),
        "flags": ("define_import_flags", "parse_flags", "read_config"),
        "local": ("build_local",),
        "options": ("complete",),
        "private": ("check_same_promise", "privacy_loss"),
        "saved": ("added_settings", "config_of_run"),
        "splits": ("check_split",),
    },
)
