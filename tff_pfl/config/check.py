"""Checks the values of a config that can be checked without data."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from tff_pfl.arguments.kinds import signature_of
from tff_pfl.arguments.names import check_names
from tff_pfl.arguments.ranges import Range, between, may_be_none, ranges_of
from tff_pfl.config.errors import ConfigError, config_errors
from tff_pfl.config.imports import import_modules
from tff_pfl.config.options import (
    ALGORITHM,
    ATTACK,
    CHOICES,
    FRACTION,
    PARTITIONER,
    complete,
    default_config,
    value_of,
)
from tff_pfl.config.parts import is_private, made
from tff_pfl.config.sections import keys, own_keys
from tff_pfl.data import PARTITIONERS
from tff_pfl.experiment.changes import Change


def check_config(config: ml_collections.ConfigDict) -> None:
    """Checks a config as far as possible without its data.

    Raises:
        ConfigError: A value is wrong. The message has the key and the right values.
    """
    import_modules(config.get("imports", ()), config.get("import_path", ()))
    _check_keys(config)
    for choice in CHOICES:
        _check_choice(config, choice)
    for key, range_ in number_ranges(config).items():
        range_.check(f"config.{key}", value_of(config, key), ConfigError)
    made(config, "evaluation")
    made(config, "early_stop")
    participation = made(config, "participation")
    if config.attack.get(FRACTION) and config.attack.get("client_ids"):
        raise _both(config, f"attack.{FRACTION}", "attack.client_ids", "both choose the attackers")
    _check_compression(config)
    _check_privacy(config, participation)


def _check_keys(config) -> None:
    """Checks that a config has all keys and no unknown ones, except for chosen options."""
    known = default_config()
    free = {choice.section for choice in CHOICES}
    sections = ["", *(key for key in own_keys() if hasattr(known[key], "keys") and key not in free)]
    for section in sections:
        found, expected = value_of(config, section) or (), value_of(known, section)
        check_names("config key", found, expected, error=ConfigError)
        for name in expected:
            if name not in found:
                key = f"{section}.{name}".lstrip(".")
                raise ConfigError(
                    f"config.{key} is missing. Start a config with tff_pfl.config.default_config()."
                )


def _check_choice(config, choice) -> None:
    """Checks that a chosen name exists, and that its options exist and are set."""
    name = choice.name_in(config)
    if name or not choice.may_be_none:
        check_names(choice.registry.kind, [name], choice.registry, error=ConfigError)
    options, parameters = choice.options_in(config), choice.parameters(name)
    tip = f"Options come with the algorithm, as in --config=configs/digits.py:{name}."
    check_names(
        f"option of {choice.registry.kind} {name!r}",
        options,
        parameters,
        error=ConfigError,
        tip=tip if choice is ALGORITHM else "",
    )
    for key, parameter in parameters.items():
        value = options.get(key, parameter.default)
        if value is parameter.empty or (value is None and not may_be_none(parameter)):
            raise ConfigError(f"config.{choice.section_in(config)}.{key} must be set, got None.")


def number_ranges(config: ml_collections.ConfigDict) -> dict[str, Range]:
    """Returns the ranges of the values of a config, by keys such as "local.epochs".

    The ranges come from what takes the values: the classes of sections, and the functions that the
    config chooses, such as the algorithm and the model.
    """
    ranges = {str(key): key.range for key in keys() if key.range is not None}
    for section, owner in _chosen(config):
        found = value_of(config, section) or {}
        for name, range_ in ranges_of(owner).items():
            if name in found:
                is_open = may_be_none(signature_of(owner).parameters[name])
                ranges[f"{section}.{name}"] = range_.or_value(None) if is_open else range_
    if ATTACK.name_in(config):
        ranges[f"attack.{FRACTION}"] = between(0, 1).or_value(None)
    return ranges


def _chosen(config) -> Iterator[tuple[str, Callable]]:
    """Yields the section of the options of each choice, and the function that takes them."""
    for name, partitioner in PARTITIONERS.items():
        yield PARTITIONER.section.format(name), partitioner
    for choice in CHOICES:
        if name := choice.name_in(config):
            yield choice.section_in(config), choice.registry[name]


def _both(config, key, other, reason) -> ConfigError:
    return ConfigError(
        f"config.{key}={value_of(config, key)!r}, but config.{other}={value_of(config, other)!r}: "
        f"{reason}. Set one of them only."
    )


def _check_compression(config) -> None:
    if not config.compression.name:
        return
    reason = "compressed uploads are decoded one by one and averaged by the plain mean"
    if config.aggregator.name not in ("", "mean"):
        raise _both(config, "compression.name", "aggregator.name", reason)
    if is_private(config):
        raise _both(config, "compression.name", _privacy_key(config), reason)


def _privacy_key(config) -> str:
    has_epsilon = config.privacy.epsilon is not None
    return "privacy.epsilon" if has_epsilon else "privacy.noise_multiplier"


def _check_privacy(config, participation) -> None:
    privacy, defaults = config.privacy, own_keys().privacy
    if not is_private(config):
        if changed := [key for key in defaults if privacy[key] != defaults[key]]:
            raise ConfigError(
                f"config.privacy.{changed[0]}={privacy[changed[0]]}, but there is no privacy "
                "without epsilon or noise_multiplier. Set one of these."
            )
        return
    if None not in (privacy.epsilon, privacy.noise_multiplier):
        reason = "one follows from the other"
        raise _both(config, "privacy.epsilon", "privacy.noise_multiplier", reason)
    if config.aggregator.name:
        reason = "privacy has its own aggregator, the mean of clipped uploads with noise"
        raise _both(config, "aggregator.name", _privacy_key(config), reason)
    is_distributed = privacy.mechanism == "distributed"
    with config_errors("participation"):
        participation.check_private(everybody_reports=is_distributed)
    if is_distributed and privacy.clipping != "fixed":
        raise ConfigError(
            f"config.privacy.clipping={privacy.clipping!r}, but with config.privacy.mechanism="
            "'distributed' clients clip their uploads to a fixed norm. Set it to 'fixed'."
        )


def check_rounds_of_epsilon(config: ml_collections.ConfigDict, changes: Sequence[Change]) -> None:
    """Checks that a resumed run has the number of rounds for which its noise was computed.

    Args:
        config: The config.
        changes: The changed settings; see `RunDirectory.changes`.

    Raises:
        ConfigError: `epsilon` was set for another number of rounds.
    """
    of_rounds = [change for change in changes if change.key == "rounds"]
    if config.privacy.epsilon is not None and of_rounds:
        raise ConfigError(
            f"config.privacy.epsilon={config.privacy.epsilon} is for all rounds, but the noise of "
            f"this run was computed for another number of rounds ({of_rounds[0]}). Only a run with "
            "config.privacy.noise_multiplier can be made longer: its epsilon grows."
        )


def config_of_run(
    settings: Mapping[str, Any], *, trust_imports: bool | Collection[str] = ()
) -> ml_collections.ConfigDict:
    """Returns the config of a run from its `config.json`.

    Args:
        settings: The settings, as returned by `RunFiles.settings`.
        trust_imports: The modules of `config.imports` that may be imported, which executes their
            code. Names: only these modules, from the working directory or Python's path. `True`:
            all modules, from the folders that the run names. Modules that are already imported
            need no trust.

    Raises:
        ConfigError: The settings are not a config of this version, or a module of
            `config.imports` is not trusted or cannot be imported.
    """
    if not {"algorithm", "imports"} <= settings.keys():
        unnamed = settings.get("unnamed", "It has no config.")
        raise ConfigError(
            f"The experiment of this run was made in Python, not by names alone: {unnamed} In "
            "Python, tff_pfl.Run(folder, experiment) has `evaluate`, `predictions` and `export`."
        )
    settings = {key: value for key, value in settings.items() if key != "fingerprints"}
    folders = settings.get("import_path", ())
    import_modules(settings.get("imports", ()), folders, trust_imports)
    try:
        config = default_config(settings["algorithm"]["name"])
        with config.unlocked():
            config.update(settings)
            if trust_imports is not True:
                config.import_path = ()
        complete(config)
        check_config(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json is not a config of this version: {error}") from error
    return config
