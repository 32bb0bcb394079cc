"""What is right in a config, as far as no data are needed to know."""

from collections.abc import Callable, Iterator

import ml_collections

from tff_pfl import data, evaluation, models
from tff_pfl.clients import Participation
from tff_pfl.experiment.config.build import (
    FURTHER_MODELS,
    early_stop,
    evaluation_options,
    participation,
)
from tff_pfl.experiment.config.defaults import default_config
from tff_pfl.experiment.config.effect import may_be_left_out
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.config.imports import import_modules
from tff_pfl.experiment.config.keys import OWN_NUMBERS
from tff_pfl.experiment.config.options import (
    ALGORITHM,
    CHOICES,
    FRACTION,
    PARTITIONER,
    type_of,
    value_of,
)
from tff_pfl.experiment.config.private import check_privacy, is_private
from tff_pfl.experiment.config.sections import values_of
from tff_pfl.local import LocalTraining
from tff_pfl.names import check_names
from tff_pfl.ranges import (
    Range,
    may_be_none,
    ranges_of,
)

# Whose keys are not those of what is chosen.
_SECTIONS = (
    "",
    "data",
    "local",
    "model",
    "evaluation",
    "participation",
    "early_stop",
    "new_clients",
    "aggregator",
    "privacy",
    "server",
)


def check_config(config: ml_collections.ConfigDict) -> None:
    """Checks what needs no data.

    Raises:
        ConfigError: It names the first key that is wrong, and what would be right.
    """
    import_modules(config.get("imports", ()), config.get("import_path", ()))
    defaults = default_config()
    for section in _SECTIONS:
        _check_keys(config, section, value_of(defaults, section))
    for choice in CHOICES:
        _check_choice(config, choice)
    types = [config.model.compute_type]
    check_names("compute type", types, models.COMPUTE_TYPES, error=ConfigError)
    for key, range_ in number_ranges(config).items():
        value = value_of(config, key)
        if value is not None:  # where it may not be, it was refused above
            range_.check(f"config.{key}", value, ConfigError)
    _check_server(config.server, defaults.server)
    _check_attackers(config.attack)
    check_privacy(config, defaults.privacy, participation(config))
    _check_compression(config)
    with values_of("evaluation"):
        evaluation_options(config)
        check_names("further model", config.evaluation.further_models, FURTHER_MODELS)
    if "fine_tuned" in config.evaluation.further_models and not config.evaluation.fine_tune_epochs:
        raise ConfigError(
            "config.evaluation.further_models has 'fine_tuned', but "
            "config.evaluation.fine_tune_epochs=0. Set it to the passes of fine-tuning."
        )
    if early_stop(config) is not None and not config.evaluation.every:
        raise ConfigError(
            f"config.early_stop.patience={config.early_stop.patience}, but "
            "config.evaluation.every=0: only the last round is evaluated. Set one of both."
        )


def number_ranges(config: ml_collections.ConfigDict) -> dict[str, Range]:
    """The ranges of all numbers of a config, by keys such as "local.epochs".

    They are stated by those who take the numbers: the algorithm, the model, the partitioner, and so
    on. What they say of other arguments is no key of the config.
    """
    ranges = dict(OWN_NUMBERS)
    for section, owner in _owners(config):
        found = value_of(config, section) or {}
        for name, range_ in ranges_of(owner).items():
            if name in found:
                ranges[f"{section}.{name}"] = range_
    return ranges


def _owners(config) -> Iterator[tuple[str, Callable]]:
    """`(section, who takes its values)`."""
    yield "data", data.federate
    yield "evaluation", evaluation.EvaluationOptions
    yield "local", LocalTraining
    yield "model", models.build
    yield "participation", Participation
    for name, partitioner in data.PARTITIONERS.items():
        yield PARTITIONER.section.format(name), partitioner
    for choice in CHOICES:
        if name := choice.name_in(config):
            yield choice.section_in(config), choice.registry[name]


def _check_keys(config, section, known) -> None:
    """The keys of a section that are no options; "" is for the config itself."""
    found = value_of(config, section)
    check_names("config key", found, known, error=ConfigError)
    for name in known:
        key = f"{section}.{name}".lstrip(".")
        if name not in found:
            raise ConfigError(
                f"config.{key} is missing. A config begins as tff_pfl.experiment.default_config()."
            )
        if found[name] is None and known[name] is not None and not may_be_left_out(config, key):
            raise _none(key, type(known[name]))


def _check_choice(config, choice) -> None:
    """A chosen name, and its options."""
    name = choice.name_in(config)
    if name or not choice.may_be_none:
        check_names(choice.registry.kind, [name], choice.registry, error=ConfigError)
    options, parameters = choice.options_in(config), choice.parameters(name)
    tip = f"They come with the algorithm, as in --config=configs/digits.py:{name}."
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
            raise _none(f"{choice.section_in(config)}.{key}", type_of(parameter))


def _none(key, kind) -> ConfigError:
    return ConfigError(f"config.{key} is None, but must be of type {kind.__name__}.")


def _check_attackers(attack) -> None:
    if attack.get(FRACTION) and attack.client_ids:
        raise ConfigError(
            f"config.attack has client_ids={attack.client_ids} and {FRACTION}={attack[FRACTION]}: "
            "either says who attacks. Set the other to () or 0."
        )


def _check_compression(config) -> None:
    """A compressed upload is decoded by itself, before it is averaged."""
    if not config.compression.name:
        return
    chosen = f"config.compression.name={config.compression.name!r}, but "
    reason = "a compressed upload is decoded by itself, and then averaged by the plain mean."
    if config.aggregator.name not in ("", "mean"):
        raise ConfigError(
            f"{chosen}config.aggregator.name={config.aggregator.name!r}: {reason} Set one to ''."
        )
    if is_private(config):
        raise ConfigError(f"{chosen}there is config.privacy: {reason} Set the name to ''.")


def _check_server(server, defaults) -> None:
    """Without an optimizer, there is nothing that its numbers would be of."""
    for key in ("learning_rate", "momentum"):
        if not server.optimizer and server[key] != defaults[key]:
            raise ConfigError(
                f"config.server.{key}={server[key]}, but config.server.optimizer is ''. Choose "
                "one, such as 'sgd'."
            )
