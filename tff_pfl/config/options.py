"""Defines what configs choose by name, and the options of each choice.

An option is declared in one place, the signature of the function that takes it. Configs read its
name, its default and its type from the signature, and its range from `takes`.
"""

import inspect
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ml_collections
from ml_collections import config_dict

from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.algorithms.registry import FROM_ELSEWHERE
from tff_pfl.arguments.registry import Registry
from tff_pfl.attacks import ATTACKS
from tff_pfl.clients import AVAILABILITIES, SELECTORS
from tff_pfl.compression import COMPRESSORS
from tff_pfl.config.errors import config_errors
from tff_pfl.config.imports import import_modules
from tff_pfl.config.sections import Config, own_keys
from tff_pfl.data import PARTITIONERS
from tff_pfl.local import AUGMENTATIONS, OPTIMIZERS, SCHEDULES
from tff_pfl.models import MODELS, TASKS
from tff_pfl.templates import AGGREGATORS

FRACTION = "fraction"
"""The key of `config.attack` for the share of the clients that attack."""

ERROR_FEEDBACK = "error_feedback"
"""The key of `config.compression` for whether clients keep compression errors for later."""


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


class Choice(NamedTuple):
    """A choice by name in a config, such as the model.

    Attributes:
        key: The key of the name, such as "model.name".
        section: The section of the options, such as "model.options". It may contain the name, too,
            and "{}" in it is replaced by the name.
        registry: The registry of the functions to choose from.
        from_elsewhere: The keyword arguments that come from other keys or from the federation.
        may_be_none: Whether the name may be "", which chooses nothing.
        default: The name that `default_config` chooses, if `own_keys` does not have the key.
        further_options: Options that are not arguments of the chosen function.
    """

    key: str
    section: str
    registry: Registry
    from_elsewhere: tuple[str, ...] = ()
    may_be_none: bool = False
    default: str = ""
    further_options: tuple[inspect.Parameter, ...] = ()

    def name_in(self, config: ml_collections.ConfigDict) -> str:
        """Returns the chosen name; "" if a config does not have the key."""
        return value_of(config, self.key) or ""

    def section_in(self, config: ml_collections.ConfigDict) -> str:
        """Returns the section of the options in a config."""
        return self.section.format(self.name_in(config))

    def make(self, config: ml_collections.ConfigDict) -> Any:
        """Calls the chosen function with the options; returns `None` if nothing is chosen."""
        name = self.name_in(config)
        return self.registry[name](**self.options_in(config)) if name else None

    def options_in(self, config: ml_collections.ConfigDict) -> dict[str, Any]:
        """Returns the options that a config sets, known or unknown."""
        section = self.section_in(config)
        found = value_of(config, section) or {}
        return {key: found[key] for key in found if f"{section}.{key}" != self.key}

    def parameters(self, name: str) -> dict[str, inspect.Parameter]:
        """Returns the declared options of a name.

        Raises:
            UnknownNameError: The name is unknown; the message has the nearest name.
        """
        if not name:
            return {}
        declared = self.registry.parameters(name)
        own = {key: p for key, p in declared.items() if key not in self.from_elsewhere}
        return own | {option.name: option for option in self.further_options}

    def set(self, config: ml_collections.ConfigDict, name: str) -> None:
        """Chooses a name, and sets all its options to their defaults.

        Raises:
            UnknownNameError: The name is unknown; the message has the nearest name.
        """
        options = {key: _default(p) for key, p in self.parameters(name).items()}
        section, _, last = self.key.rpartition(".")
        with config.unlocked():
            value_of(config, section)[last] = name
            if self.section == section:
                options = {last: name} | options
            if options or value_of(config, self.section_in(config)) is not None:
                section, _, last = self.section_in(config).rpartition(".")
                value_of(config, section)[last] = Config(options)

    def complete(self, config: ml_collections.ConfigDict) -> None:
        """Adds the options that a config does not set, with their defaults.

        If another name than `default` is chosen, unchanged options of `default` are removed.

        Raises:
            ConfigError: The name is unknown (the message has the nearest name), or an option has
                the wrong type.
        """
        given = self.options_in(config)
        with config_errors(self.key):
            own = self.parameters(self.name_in(config))
            for key, parameter in self.parameters(self.default).items():
                if key in given and key not in own and given[key] == _default(parameter):
                    del given[key]
            self.set(config, self.name_in(config))
        with config_errors(self.section_in(config)), config.unlocked():
            if given:
                update(value_of(config, self.section_in(config)), given)


ALGORITHM = Choice("algorithm.name", "algorithm", ALGORITHMS, FROM_ELSEWHERE)
PARTITIONER = Choice("data.partitioner", "data.{}", PARTITIONERS)
MODEL = Choice("model.name", "model.options", MODELS)
TASK = Choice("task.name", "task", TASKS, default="classification")
LOCAL_OPTIMIZER = Choice("local.optimizer", "local.options", OPTIMIZERS, ("momentum",))
SCHEDULE = Choice("local.schedule.name", "local.schedule", SCHEDULES, default="constant")
AUGMENTATION = Choice(
    "local.augmentation.name", "local.augmentation", AUGMENTATIONS, may_be_none=True
)
AGGREGATOR = Choice(
    "aggregator.name", "aggregator.options", AGGREGATORS, ("clients_per_round",), may_be_none=True
)
SERVER_OPTIMIZER = Choice(
    "server.optimizer", "server.options", OPTIMIZERS, ("momentum",), may_be_none=True
)
AVAILABILITY = Choice(
    "participation.availability.name",
    "participation.availability",
    AVAILABILITIES,
    default="always",
)
SELECTOR = Choice(
    "participation.selector.name", "participation.selector", SELECTORS, default="uniform"
)
ATTACK = Choice(
    "attack.name",
    "attack",
    ATTACKS,
    ("num_classes",),
    may_be_none=True,
    default="scaled_uploads",
    further_options=(_option(FRACTION, 0.0, float | None),),
)
COMPRESSION = Choice(
    "compression.name",
    "compression",
    COMPRESSORS,
    may_be_none=True,
    further_options=(_option(ERROR_FEEDBACK, False, bool),),
)

CHOICES = (
    *(ALGORITHM, PARTITIONER, MODEL, TASK, LOCAL_OPTIMIZER, SCHEDULE, AUGMENTATION),
    *(AGGREGATOR, SERVER_OPTIMIZER, AVAILABILITY, SELECTOR, ATTACK, COMPRESSION),
)


def default_config(
    algorithm: str = "fedavg", *, imports: str | Sequence[str] = ()
) -> ml_collections.ConfigDict:
    """Returns a config with the default values of all keys.

    `docs/keys.md` explains the keys.

    Args:
        algorithm: A key of `tff_pfl.algorithms.ALGORITHMS`, whose hyperparameters become keys.
        imports: The module, or the modules, that register names, such as the algorithm's.

    Raises:
        UnknownNameError: The algorithm is unknown; the message has the nearest name.
        ConfigError: A module cannot be imported.

    Example:
        >>> config = tff_pfl.default_config("ditto")
        >>> config.algorithm.lambda_
        0.1
        >>> config.rounds = 50
        >>> config.data.dirichlet.alpha = 0.1
    """
    config = own_keys()
    config.imports = (imports,) if isinstance(imports, str) else tuple(imports)
    import_modules(config.imports)
    partitioner = config.data.partitioner
    for name in PARTITIONER.registry:
        PARTITIONER.set(config, name)
    config.data.partitioner = partitioner
    for choice in (TASK, SCHEDULE, AUGMENTATION, AVAILABILITY, SELECTOR, ATTACK, COMPRESSION):
        choice.set(config, choice.default)
    ALGORITHM.set(config, algorithm)
    return config


def complete(config: ml_collections.ConfigDict, names: Mapping[str, str] | None = None) -> None:
    """Adds the options of all choices that a config does not set, with their defaults.

    Args:
        config: The config. Choices whose keys are missing are ignored.
        names: The names to choose instead of the config's names, by keys such as "model.name". They
            replace the options of the config's choice.

    Raises:
        UnknownNameError: A name of `names` is unknown; the message has the nearest name.
        ConfigError: A name of the config is unknown (the message has the nearest name), an option
            has the wrong type, or a module cannot be imported.
    """
    import_modules(config.get("imports", ()), config.get("import_path", ()))
    for choice in CHOICES:
        if value_of(config, choice.key) is None:
            continue
        name = (names or {}).get(choice.key, choice.name_in(config))
        if name != choice.name_in(config):
            choice.set(config, name)
        choice.complete(config)


def update(config: ml_collections.ConfigDict, values: Mapping[str, Any]) -> None:
    """Sets values of a config.

    Raises:
        ValueError: A value has another type than the config's value.
    """
    try:
        config.update(values)
    except TypeError as error:
        raise ValueError(error) from error


def value_of(config: ml_collections.ConfigDict, key: str) -> Any:
    """Returns the value of a key such as "model.name", or `None`; for "" the config itself."""
    for part in filter(None, key.split(".")):
        if not isinstance(config, ml_collections.ConfigDict) or part not in config:
            return None
        config = config[part]
    return config


def type_of(parameter: inspect.Parameter) -> type:
    """Returns the type as which flags parse an option's values: `T` for `T | None`."""
    if parameter.default is not None and parameter.default is not parameter.empty:
        if parameter.annotation is float:  # which may have an integer as its default
            return float
        return type(parameter.default)
    annotation = parameter.annotation
    is_union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    members = typing.get_args(annotation) if is_union else (annotation,)
    kinds = [kind for kind in members if kind is not types.NoneType]
    if len(kinds) != 1 or kinds[0] is parameter.empty:
        return object
    if typing.get_origin(kinds[0]) is not None:
        return tuple  # such as Iterable[str]
    return kinds[0] if isinstance(kinds[0], type) else object


def _default(parameter: inspect.Parameter) -> Any:
    """Returns the default of an option, or a placeholder for values of its type."""
    if parameter.default is None or parameter.default is parameter.empty:
        return config_dict.placeholder(type_of(parameter))
    return type_of(parameter)(parameter.default)
