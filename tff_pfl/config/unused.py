"""Finds settings that other settings make irrelevant."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import ml_collections

from tff_pfl.algorithms.registry import ALGORITHMS, local_idle_where
from tff_pfl.config.options import FRACTION, PARTITIONER, value_of
from tff_pfl.local import OPTIMIZERS

# The settings of local training, except its learning rate.
_TRAINING = tuple(
    f"local.{key}"
    for key in (
        *("optimizer", "options", "momentum", "weight_decay", "clip_norm", "epochs", "steps"),
        *("batch_size", "drop_remainder", "augmentation", "persist_optimizer_state"),
    )
)
_PARTITION = (
    *("data.num_clients", "data.partitioner", "data.merge", "data.fractions"),
    *("data.num_validation", "data.imbalance", "data.imbalanced_test"),
)


class _Switch(NamedTuple):
    """A switch: keys whose values decide whether other settings have an effect.

    Attributes:
        settings: The keys, or sections of keys, that the switch turns on and off.
        keys: The keys of the switch, which always have an effect, even if `settings` include them.
        is_on: `(values of keys -> bool)`: whether the settings have an effect.
    """

    settings: Collection[str]
    keys: Sequence[str]
    is_on: Callable[[list[Any]], bool] = any

    def holds(self, key: str) -> bool:
        """Returns whether the switch turns a key on and off."""
        inside = any(f"{key}.".startswith(f"{setting}.") for setting in self.settings)
        return inside and key not in self.keys


def _equals(value):
    return lambda values: values == [value]


def _differs(value):
    return lambda values: values != [value]


def _has_momentum(values):
    return values[0] in OPTIMIZERS and "momentum" in OPTIMIZERS.parameters(values[0])


_SWITCHES = (
    _Switch(("early_stop",), ("early_stop.patience",)),
    _Switch(
        ("evaluation.fine_tune_learning_rate",),
        ("evaluation.fine_tune_epochs", "new_clients.number", "new_clients.evaluated"),
        lambda values: values[0] or all(values[1:]),
    ),
    _Switch(
        ("evaluation.synthetic", "evaluation.subsample"),
        ("evaluation.generalization",),
        _differs("never"),
    ),
    _Switch(("new_clients",), ("new_clients.number",)),
    _Switch(("new_clients.fine_tune_epochs", "new_clients.best_epoch"), ("new_clients.evaluated",)),
    _Switch(("evaluation.validation",), ("evaluation.split",), _differs("validation")),
    _Switch(("data.imbalanced_test",), ("data.imbalance",), _differs(1)),
    _Switch(("data.num_clients",), (PARTITIONER.key,), _differs("natural")),
    _Switch(("data.fractions",), ("data.merge",)),
    _Switch(("attack",), ("attack.client_ids", f"attack.{FRACTION}")),
    _Switch(("local.epochs",), ("local.steps",), _equals(None)),
    _Switch(("local.momentum",), ("local.optimizer",), _has_momentum),
    _Switch(("server",), ("server.optimizer",)),
    _Switch(("privacy.bits",), ("privacy.mechanism",), _equals("distributed")),
)


def _switches(algorithm):
    yield from _SWITCHES
    sections = {name: PARTITIONER.section.format(name) for name in PARTITIONER.registry}
    yield _Switch(
        (*_PARTITION, *sections.values()),
        ("data.partition_file",),
        lambda values: not any(values),
    )
    for name, section in sections.items():
        yield _Switch((section,), (PARTITIONER.key,), _equals(name))
    if algorithm in ALGORITHMS and (idle := local_idle_where(algorithm)):
        option, exact = idle
        others = ("evaluation.fine_tune_epochs", "evaluation.further_models", "new_clients.number")
        yield _Switch(
            _TRAINING,
            (f"algorithm.{option}", *others),  # the others train in any case
            lambda values: values[0] != exact or any(values[1:]),
        )


def unused_settings(config: ml_collections.ConfigDict, keys: Collection[str]) -> Iterator[str]:
    """Yields a sentence for each setting without effect, with the key that turns it off.

    Settings that are `None` are not reported, such as `local.epochs=None` beside `local.steps=2`.

    Args:
        config: The config. Switches whose keys it lacks are ignored.
        keys: The keys to check, which a user has set by hand. Other keys of a config file may have
            settings without effect.
    """
    for switch in _switches(value_of(config, "algorithm.name")):
        values = [value_of(config, key) for key in switch.keys]
        if values[0] is None or switch.is_on(values):
            continue
        for key in filter(switch.holds, keys):
            if value_of(config, key) is not None:
                yield f"config.{key} has no effect: config.{switch.keys[0]} is {values[0]!r}."
