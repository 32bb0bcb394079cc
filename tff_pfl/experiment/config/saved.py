"""The config of a run that is over, or was stopped."""

from collections.abc import Collection, Mapping
from typing import Any

import ml_collections

from tff_pfl.experiment.config.check import check_config
from tff_pfl.experiment.config.defaults import default_config
from tff_pfl.experiment.config.errors import ConfigError, ImportsError
from tff_pfl.experiment.config.imports import import_modules
from tff_pfl.experiment.config.options import complete
from tff_pfl.experiment.run_directory import flatten, resolved

# What earlier versions did not have, and did as its defaults say.
_OPTIONAL = {
    "aggregator",
    "attack",
    "compression",
    "early_stop",
    "import_path",
    "imports",
    "new_clients",
    "paper",
    "participation",
    "privacy",
    "server",
}

# Keys, and sections, that runs of earlier versions do not have, and did as their defaults say: such
# a run can be resumed.
_ADDED = (
    "attack.fraction",
    "compression",
    "data.imbalance",
    "data.imbalanced_test",
    "early_stop",
    "evaluation.clients",
    "evaluation.further_models",
    "evaluation.late_share",
    "evaluation.validation",
    "local.augmentation",
    "local.schedule",
    "local.warm_up_rounds",
    "model.compute_type",
    "model.segments",
    "new_clients.best_epoch",
    "new_clients.evaluated",
    "participation",
    "privacy",
)


def added_settings() -> dict[str, Any]:
    """What the runs of earlier versions did in effect, by keys such as "early_stop.patience"."""
    defaults = flatten(resolved(default_config()), ".")
    return {
        key: value
        for key, value in defaults.items()
        if any(f"{key}.".startswith(f"{added}.") for added in _ADDED)
    }


def config_of_run(
    settings: Any, *, trust_imports: bool | Collection[str] = ()
) -> ml_collections.ConfigDict:
    """The config of a run from its `config.json`.

    Args:
        settings: What `RunFiles.settings` returns.
        trust_imports: The modules of `config.imports` that may be imported, which executes their
            code. Names: only these, from the working directory, or from where Python looks. `True`:
            all, from the folders that the run names. A module that is already imported needs no
            trust.

    Raises:
        ConfigError: If it is not a config of this version; as `ImportsError`, if a module that it
            names is not trusted, or cannot be imported.
    """
    if isinstance(settings, Mapping) and "algorithm" not in settings:
        raise ConfigError(
            "config.json has no algorithm: the run was made in Python, without a config that says "
            "how. Evaluate it in Python, where its process is."
        )
    try:
        folders = settings.get("import_path", ())
        import_modules(settings.get("imports", ()), folders, trust_imports)
        config = default_config(settings["algorithm"]["name"])
        missing = set(config) - set(settings) - _OPTIONAL
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} are missing")
        with config.unlocked():
            config.update(settings)
            if trust_imports is not True:
                config.import_path = ()
        complete(config)
        check_config(config)
    except ImportsError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json describes no run of this version: {error}") from error
    return config
