"""Settings that nothing looks at, as others are what they are."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import ml_collections

from tff_pfl.algorithms.registry import ALGORITHMS, training_switch
from tff_pfl.experiment.config.options import FRACTION, PARTITIONER, value_of

# What there is of local training besides its learning rate.
_OF_STEPS = tuple(
    f"local.{key}"
    for key in (
        *("optimizer", "options", "momentum", "weight_decay", "clip_norm", "epochs", "steps"),
        *("batch_size", "drop_remainder", "augmentation", "persist_optimizer_state"),
    )
)


class _Switch(NamedTuple):
    """What some settings need to have an effect.

    Attributes:
        sections: Keys, or sections of keys.
        switches: The keys that turn their effect on and off; those among `sections` are no
            settings that it is of.
        remedy: What turns it on.
        is_on: Of the values of `switches`: whether the settings have an effect.
        replaces: Whether `switches` take the place of the settings: who sets both by hand does not
            mean to turn the others off.
    """

    sections: Collection[str]
    switches: Sequence[str]
    remedy: str
    is_on: Callable[[list[Any]], bool] = any
    replaces: bool = False

    def holds(self, key: str) -> bool:
        """Whether it says when a key has an effect."""
        inside = any(f"{key}.".startswith(f"{section}.") for section in self.sections)
        return inside and key not in self.switches


_SWITCHES = (
    _Switch(
        ("early_stop",),
        ("early_stop.patience",),
        "--config.early_stop.patience=5 stops after 5 evaluations without an improvement",
    ),
    _Switch(
        ("evaluation.fine_tune_learning_rate",),
        ("evaluation.fine_tune_epochs", "new_clients.number", "new_clients.evaluated"),
        "--config.evaluation.fine_tune_epochs=1 fine-tunes in one pass",
        lambda values: values[0] or all(values[1:]),
    ),
    _Switch(
        ("evaluation.synthetic", "evaluation.subsample"),
        ("evaluation.generalization",),
        "--config.evaluation.generalization=last evaluates on other clients' examples at the end",
        lambda values: values != ["never"],
    ),
    _Switch(
        ("new_clients",),
        ("new_clients.number",),
        "--config.new_clients.number=5 keeps the last 5 clients out of training",
    ),
    _Switch(
        ("new_clients.fine_tune_epochs", "new_clients.best_epoch"),
        ("new_clients.evaluated",),
        "--config.new_clients.evaluated=True fine-tunes them, and evaluates them",
    ),
    _Switch(
        ("evaluation.validation",),
        ("evaluation.split",),
        "--config.evaluation.split=test evaluates on test examples, and these beside them",
        lambda values: values != ["validation"],
    ),
    _Switch(
        ("data.imbalanced_test",),
        ("data.imbalance",),
        "--config.data.imbalance=10 makes the first class ten times as large as the last",
        lambda values: values != [1],
    ),
    _Switch(
        ("data.num_clients",),
        (PARTITIONER.key,),
        "--config.data.partitioner=dirichlet makes so many clients; the data have their own",
        lambda values: values != ["natural"],
    ),
    _Switch(
        ("attack",),
        ("attack.client_ids", f"attack.{FRACTION}"),
        "--config.attack.client_ids='(0,)' says who attacks",
    ),
    _Switch(
        ("local.epochs",),
        ("local.steps",),
        "--config.local.steps=None trains for epochs",
        lambda values: values == [None],
        replaces=True,
    ),
    _Switch(
        ("data.fractions",),
        ("data.merge",),
        "--config.data.merge=True pools the original splits, and cuts by fractions",
    ),
)


def _switches(algorithm):
    yield from _SWITCHES
    yield _Switch(
        (
            *("data.num_clients", "data.partitioner", "data.merge", "data.fractions"),
            *("data.num_validation", "data.imbalance", "data.imbalanced_test"),
            *(PARTITIONER.section.format(name) for name in PARTITIONER.registry),
        ),
        ("data.partition_file",),
        "--config.data.partition_file= makes a new partition",
        lambda values: not any(values),
        replaces=True,
    )
    for name in PARTITIONER.registry:
        yield _Switch(
            (PARTITIONER.section.format(name),),
            (PARTITIONER.key,),
            f"--config.{PARTITIONER.key}={name} chooses its partitioner",
            lambda values, name=name: values == [name],
        )
    if algorithm in ALGORITHMS and (trains := training_switch(algorithm)):
        option, steps = trains
        yield _Switch(
            _OF_STEPS,
            (
                f"algorithm.{option}",
                # These train by them, whatever the algorithm does.
                *("evaluation.fine_tune_epochs", "evaluation.further_models", "new_clients.number"),
            ),
            f"--config.algorithm.{option}={steps} trains in steps; exact gradients take the "
            "learning rate alone",
            lambda values: values[0] == steps or any(values[1:]),
        )


class Idle(NamedTuple):
    """A setting without effect.

    Attributes:
        key: Its key.
        switch: The key that turns it off.
        value: What that is.
        remedy: What turns it on, by a flag of a config.
    """

    key: str
    switch: str
    value: Any
    remedy: str


def without_effect(config: ml_collections.ConfigDict, keys: Collection[str]) -> Idle | None:
    """The first of some settings that has no effect; `None` if all have one.

    A config file may have settings of what is turned off: somebody may turn it on. And what is
    turned off beside them, among the same keys, is meant to be off. A setting that is `None` is not
    reported, such as `local.epochs=None` beside `local.steps=2`.

    Args:
        config: All keys; of other configs than those of `default_config` nothing is said.
        keys: Those that somebody has set by hand.
    """
    for switch, value in _turned_off(config):
        if not switch.replaces and set(switch.switches) & set(keys):
            continue
        for key in filter(switch.holds, keys):
            if value_of(config, key) is not None:
                return Idle(key, switch.switches[0], value, switch.remedy)
    return None


def may_be_left_out(config: ml_collections.ConfigDict, key: str) -> bool:
    """Checks whether other settings turn a setting off, so that it may be `None`."""
    return any(switch.holds(key) for switch, _ in _turned_off(config))


def _turned_off(config) -> Iterator[tuple[_Switch, Any]]:
    """Yields the switches that are off, each with the value of its first key."""
    for switch in _switches(value_of(config, "algorithm.name")):
        values = [value_of(config, key) for key in switch.switches]
        if values[0] is not None and not switch.is_on(values):
            yield switch, values[0]
