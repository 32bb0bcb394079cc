"""Finds settings that other settings make irrelevant."""

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import ml_collections

from tff_pfl.algorithms.registry import ALGORITHMS, local_idle_where
from tff_pfl.config.options import FRACTION, PARTITIONER, value_of
from tff_pfl.config.sections import SECTIONS, keys


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


def _differs(idle) -> Callable[[list[Any]], bool]:
    return lambda values: not (idle(values[0]) if callable(idle) else values[0] == idle)


def _switches(algorithm) -> Iterator[_Switch]:
    """Yields the switches that settings declare, and those of several sections."""
    for section, content in SECTIONS.items():
        if content.switch:
            yield _Switch((section,), (f"{section}.{content.switch}",))
    for key in keys():
        for name, idle in key.facts.idle.items():
            yield _Switch((str(key),), (f"{key.section}.{name}",), _differs(idle))
    for name in PARTITIONER.registry:
        section = PARTITIONER.section.format(name)
        yield _Switch((section,), ("data.partition_file",), _differs(bool))
        yield _Switch((section,), (PARTITIONER.key,), functools.partial(operator.eq, [name]))
    yield _Switch(("attack",), ("attack.client_ids", f"attack.{FRACTION}"))
    # New clients and further models train in any case.
    tuning, new = ("evaluation.fine_tune_epochs",), ("new_clients.number", "new_clients.evaluated")
    yield _Switch(
        ("evaluation.fine_tune_learning_rate",),
        (*tuning, *new),
        lambda values: values[0] or all(values[1:]),
    )
    if algorithm in ALGORITHMS and (idle := local_idle_where(algorithm)):
        option, exact = idle
        yield _Switch(
            [f"local.{name}" for name in (*_training_keys(), "options", "augmentation")],
            (f"algorithm.{option}", *tuning, "evaluation.further_models", new[0]),
            lambda values: values[0] != exact or any(values[1:]),
        )


def _training_keys() -> Iterator[str]:
    """Yields the keys of local training, except those of the learning rate."""
    rate = ("learning_rate", "learning_rate_decay", "warm_up_rounds")
    return (key.name for key in keys() if key.section == "local" and key.name not in rate)


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
