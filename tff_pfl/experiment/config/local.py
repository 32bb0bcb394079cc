"""From a config to the training of clients, and its optimizers."""

import functools

import ml_collections
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.config.options import AUGMENTATION, SCHEDULE
from tff_pfl.experiment.config.sections import values_of
from tff_pfl.local import OPTIMIZERS, LocalTraining
from tff_pfl.tracebacks import place


def build_local(
    config: ml_collections.ConfigDict, learning_rate: float | None = None
) -> LocalTraining:
    """The local training of a config, or the same with another learning rate."""
    local = config.local
    optimizer = build_optimizer(config, "local", learning_rate)
    with values_of("local"):
        return LocalTraining(
            optimizer=optimizer,
            epochs=local.epochs,
            steps=local.steps,
            batch_size=local.batch_size,
            learning_rate_decay=local.learning_rate_decay,
            weight_decay=local.weight_decay,
            drop_remainder=local.drop_remainder,
            persist_optimizer_state=local.persist_optimizer_state,
            clip_norm=local.clip_norm,
            schedule=SCHEDULE.make(config),
            warm_up_rounds=local.warm_up_rounds,
            augment=AUGMENTATION.make(config),
        )


def build_fine_tuning(config: ml_collections.ConfigDict) -> LocalTraining:
    """As clients train, but for a learning rate of its own, which is the same after all rounds."""
    rate = config.evaluation.fine_tune_learning_rate
    fine_tuning = build_local(config, rate)
    return fine_tuning if rate is None else fine_tuning.at_constant_rate()


def check_schedule(local: LocalTraining, config: ml_collections.ConfigDict) -> None:
    """Checks the factors of a schedule in all rounds of a config: below 0, training goes uphill.

    Raises:
        ConfigError: With the first round whose factor is below 0, or no number; or it fails.
    """
    if SCHEDULE.name_in(config) == "constant":
        return

    @functools.partial(tf.function, autograph=False)
    def all_rounds():
        return tf.map_fn(local.schedule_factor, tf.range(config.rounds, dtype=tf.float32))

    try:
        factors = all_rounds().numpy()
    except Exception as error:
        raise ConfigError(
            f"config.{SCHEDULE.key}={SCHEDULE.name_in(config)!r}: {type(error).__name__}: {error}"
            f"{place(error)}"
        ) from error
    (wrong,) = np.nonzero(~((factors >= 0) & np.isfinite(factors)))
    if wrong.size:
        raise ConfigError(
            f"config.{SCHEDULE.key}={SCHEDULE.name_in(config)!r} has the factor "
            f"{factors[wrong[0]]:g} in round {wrong[0]} (from 0) of config.rounds={config.rounds}. "
            "What multiplies the learning rate is 0 or more in all of them."
        )


def build_optimizer(
    config: ml_collections.ConfigDict, section: str, learning_rate: float | None = None
) -> tff.learning.optimizers.Optimizer:
    """The optimizer of a section, or the same with another learning rate."""
    chosen = config[section]
    has_momentum = "momentum" in OPTIMIZERS.parameters(chosen.optimizer)
    if chosen.momentum and not has_momentum:
        raise ConfigError(
            f"config.{section}.momentum={chosen.momentum}, but the optimizer {chosen.optimizer!r} "
            "has none, other than 'sgd'. Set it to 0."
        )
    momentum = {"momentum": chosen.momentum} if has_momentum else {}
    if learning_rate is None:
        learning_rate = chosen.learning_rate
    with values_of(section):
        build = OPTIMIZERS[chosen.optimizer]
        return build(learning_rate, **momentum, **chosen.options.to_dict())
