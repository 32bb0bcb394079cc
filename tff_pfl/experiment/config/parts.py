"""Builds values from single sections of a config, such as local training and privacy."""

import dataclasses
import functools

import ml_collections
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl import evaluation
from tff_pfl.clients import Participation
from tff_pfl.experiment.config.errors import values_of
from tff_pfl.experiment.config.options import AUGMENTATION, AVAILABILITY, SCHEDULE
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.local import OPTIMIZERS, LocalTraining
from tff_pfl.privacy import Accountant, PrivacyLoss, default_delta

FURTHER_MODELS = ("locally_trained", "fine_tuned")
"""The names that `config.evaluation.further_models` may have."""


def build_local(
    config: ml_collections.ConfigDict, learning_rate: float | None = None
) -> LocalTraining:
    """Builds the local training of a config, or the same with another learning rate."""
    optimizer = build_optimizer(config, "local", learning_rate)
    made = {"schedule": SCHEDULE.make(config), "augment": AUGMENTATION.make(config)}
    own = {field.name for field in dataclasses.fields(LocalTraining)} - {"optimizer", *made}
    with values_of("local"):
        values = {key: config.local[key] for key in own if key in config.local}
        return LocalTraining(optimizer=optimizer, **made, **values)


def build_fine_tuning(config: ml_collections.ConfigDict) -> LocalTraining:
    """Builds local training for evaluation, whose own learning rate is the same in all rounds."""
    rate = config.evaluation.fine_tune_learning_rate
    fine_tuning = build_local(config, rate)
    return fine_tuning if rate is None else fine_tuning.at_constant_rate()


def check_schedule(local: LocalTraining, config: ml_collections.ConfigDict) -> None:
    """Checks the factors of a schedule in all rounds of a config: below 0, training goes uphill.

    Raises:
        ConfigError: With the first round whose factor is below 0 or not finite.
    """
    if SCHEDULE.name_in(config) == "constant":
        return

    @functools.partial(tf.function, autograph=False)
    def all_rounds():
        return tf.map_fn(local.schedule_factor, tf.range(config.rounds, dtype=tf.float32))

    with values_of("local.schedule"):
        factors = all_rounds().numpy()
        (wrong,) = np.nonzero(~((factors >= 0) & np.isfinite(factors)))
        if wrong.size:
            raise ValueError(
                f"{SCHEDULE.name_in(config)!r} has the factor {factors[wrong[0]]:g} in round "
                f"{wrong[0]} (from 0) of config.rounds={config.rounds}. It must be 0 or more in "
                "all of them."
            )


def build_optimizer(
    config: ml_collections.ConfigDict, section: str, learning_rate: float | None = None
) -> tff.learning.optimizers.Optimizer:
    """Builds the optimizer of a section, or the same with another learning rate.

    Momentum is given to optimizers that have it, as SGD.
    """
    chosen = config[section]
    options = chosen.options.to_dict()
    if "momentum" in OPTIMIZERS.parameters(chosen.optimizer):
        options["momentum"] = chosen.momentum
    rate = chosen.learning_rate if learning_rate is None else learning_rate
    with values_of(section):
        return OPTIMIZERS[chosen.optimizer](rate, **options)


def evaluation_options(config: ml_collections.ConfigDict) -> evaluation.EvaluationOptions:
    """Returns what a config evaluates."""
    options = config.evaluation
    own = [field.name for field in dataclasses.fields(evaluation.EvaluationOptions)]
    values = {key: options[key] for key in own if key in options}
    values["synthetic"] = tuple(options.synthetic)
    return evaluation.EvaluationOptions(seed=config.seed, **values)


def participation(config: ml_collections.ConfigDict) -> Participation:
    """Returns who is selected in a round of a config, and who of them reports.

    Raises:
        ConfigError: If a value is wrong, or some do not fit together.
    """
    with values_of("participation"):
        availability = AVAILABILITY.make(config)
        return Participation(**config.participation.to_dict() | {"availability": availability})


def early_stop(config: ml_collections.ConfigDict) -> EarlyStop | None:
    """Returns what ends a run of a config early, if anything does.

    Raises:
        ConfigError: If a value is wrong, or only the last round is evaluated.
    """
    with values_of("early_stop"):
        if not config.early_stop.patience:
            return None
        stop = EarlyStop(**config.early_stop.to_dict())
        stop.check_every(config.evaluation.every)
        return stop


def is_private(config: ml_collections.ConfigDict) -> bool:
    """Returns whether a config promises privacy to clients."""
    return config.privacy.epsilon is not None or config.privacy.noise_multiplier is not None


def privacy_loss(config: ml_collections.ConfigDict, num_clients: int) -> PrivacyLoss | None:
    """Returns what the rounds of a config reveal of its clients; `None` without privacy.

    Args:
        config: The config.
        num_clients: How many train.

    Raises:
        ConfigError: If no noise is enough.
    """
    if not is_private(config):
        return None
    privacy = config.privacy
    with values_of("privacy"):
        delta = default_delta(num_clients) if privacy.delta is None else privacy.delta
        accountant = Accountant(
            num_clients, config.clients_per_round, delta, config.participation.sampling
        )
        noise = privacy.noise_multiplier
        if noise is None:
            noise = accountant.noise_multiplier(privacy.epsilon, config.rounds)
        return PrivacyLoss(accountant, noise)
