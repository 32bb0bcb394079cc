"""Defines the keys of configs, checks their values, and builds runs from configs."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "build": (
            "build_algorithm",
            "build_dataset",
            "build_model",
            "build_process",
            "check_split",
            "hold_out",
        ),
        "check": ("check_config", "check_rounds_of_epsilon", "config_of_run", "number_ranges"),
        "errors": ("ConfigError",),
        "flags": ("define_import_flags", "parse_flags", "read_config"),
        "options": ("complete", "default_config"),
        "parts": ("build_local", "evaluation_options", "participation", "privacy_loss"),
        "run": ("BuiltRun",),
        "study": (
            "Run",
            "Search",
            "Settings",
            "Study",
            "Tuning",
            "Variant",
            "draws",
            "grid",
            "load_study",
            "log_uniform",
            "one_of",
            "uniform",
        ),
        "study_check": ("check_settings",),
        "sweep": ("run_study",),
        "unused": ("unused_settings",),
    },
)
