"""Builds local training, privacy and other parts of a run from sections of a config."""

import functools
from typing import Any

import ml_collections
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.arguments.settings import facts
from tff_pfl.config.errors import config_errors
from tff_pfl.config.options import AUGMENTATION, CHOICES, SCHEDULE
from tff_pfl.config.sections import SECTIONS
from tff_pfl.local import OPTIMIZERS, LocalTraining
from tff_pfl.privacy import Accountant, default_delta


def build_local(config: ml_collections.ConfigDict) -> LocalTraining:
    """Builds the local training of a config."""
    optimizer = build_optimizer(config, "local")
    is_constant = SCHEDULE.name_in(config) == SCHEDULE.default
    schedule = None if is_constant else SCHEDULE.make(config)
    augment = AUGMENTATION.make(config)
    own = facts(LocalTraining).keys() & set(config.local) - {"optimizer", "schedule", "augment"}
    with config_errors("local"):
        values = {key: config.local[key] for key in own}
        return LocalTraining(optimizer=optimizer, schedule=schedule, augment=augment, **values)


def check_schedule(local: LocalTraining, config: ml_collections.ConfigDict) -> None:
    """Checks that a schedule's factors in all rounds are finite and at least 0.

    Raises:
        ConfigError: A factor is negative or not finite. The message has the first such round.
    """
    if local.schedule is None:
        return

    @functools.partial(tf.function, autograph=False)
    def all_rounds():
        return tf.map_fn(local.schedule_factor, tf.range(config.rounds, dtype=tf.float32))

    with config_errors("local.schedule"):
        factors = all_rounds().numpy()
        (wrong,) = np.nonzero(~((factors >= 0) & np.isfinite(factors)))
        if wrong.size:
            raise ValueError(
                f"{SCHEDULE.name_in(config)!r} has the factor {factors[wrong[0]]:g} in round "
                f"{wrong[0]} (from 0) of config.rounds={config.rounds}. It must be 0 or more in "
                "all rounds."
            )


def build_optimizer(
    config: ml_collections.ConfigDict, section: str
) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer of a section.

    The section's momentum is passed to optimizers that take it, such as SGD.
    """
    chosen = config[section]
    options = chosen.options.to_dict()
    if "momentum" in OPTIMIZERS.parameters(chosen.optimizer):
        options["momentum"] = chosen.momentum
    with config_errors(section):
        return OPTIMIZERS[chosen.optimizer](chosen.learning_rate, **options)


def made(config: ml_collections.ConfigDict, section: str, **values: Any) -> Any:
    """Makes the value of a section, such as the `Evaluation` of "evaluation".

    Args:
        config: The config.
        section: The name of a section of one class.
        **values: Arguments of the class that are not in the section.

    Returns:
        The value, or `None` if the section is turned off.

    Raises:
        ConfigError: A value is wrong, or values contradict each other.
    """
    content = SECTIONS[section]
    (kind,) = content.kinds
    if content.switch and not config[section][content.switch]:
        return None
    with config_errors(section):
        return kind(**config[section].to_dict() | _chosen(config, section) | values)


def _chosen(config, section) -> dict[str, Any]:
    """Returns what a section chooses by names in sections of their own."""
    inner = {f"{section}.{name}": name for name in SECTIONS[section].sections}
    return {inner[c.section]: c.make(config) for c in CHOICES if c.section in inner}


def is_private(config: ml_collections.ConfigDict) -> bool:
    """Returns whether a config has differential privacy."""
    return config.privacy.epsilon is not None or config.privacy.noise_multiplier is not None


def accountant_of(config: ml_collections.ConfigDict, num_clients: int) -> Accountant | None:
    """Returns the accountant of a config's rounds, or `None` without privacy.

    Args:
        config: The config.
        num_clients: The number of clients that train.

    Raises:
        ConfigError: A value is wrong.
    """
    if not is_private(config):
        return None
    with config_errors("privacy"):
        delta = config.privacy.delta
        return Accountant(
            num_clients,
            config.clients_per_round,
            default_delta(num_clients) if delta is None else delta,
            config.participation.sampling,
        )
