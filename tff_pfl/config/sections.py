"""The sections of a config: each is the class of settings that takes it.

A config is one `ml_collections.ConfigDict` that describes a run completely. A file in `configs/`
returns a copy of `default_config` with its own values. Flags such as `--config.rounds=50` override
single values. `docs/keys.md` lists all keys.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import ml_collections
import numpy as np
from ml_collections import config_dict

from tff_pfl import data, models
from tff_pfl.arguments.ranges import Range, above, among, at_least, inside, ranges_of, up_to, whole
from tff_pfl.arguments.settings import NOTHING, Facts, facts, setting, settings
from tff_pfl.clients import Participation
from tff_pfl.evaluation import Evaluation
from tff_pfl.experiment import EarlyStop, Experiment, NewClients
from tff_pfl.local import OPTIMIZERS, LocalTraining
from tff_pfl.models import COMPUTE_TYPES
from tff_pfl.privacy import CLIPPINGS

MECHANISMS = ("central", "distributed")
_FEDERATE, _BUILD = ranges_of(data.federate), ranges_of(models.build)
_LORA = ranges_of(models.lora)
_NO_FILE = {"partition_file": bool}
_PLAIN = {bool, int, float, str, tuple, types.NoneType}
_OF_PYTHON = {"label", "initial_rate"}  # fields that no config sets


class Config(ml_collections.ConfigDict):
    """A `ConfigDict` that converts NumPy's numbers to Python's."""

    def __setitem__(self, key, value):
        """Sets the value of a key."""
        super().__setitem__(key, value.item() if isinstance(value, np.generic) else value)


@settings
class Imports:
    """The modules of the user."""

    imports: tuple[str, ...] = setting(
        "Modules that register names, such as my_package.methods.", default=()
    )
    import_path: tuple[str, ...] = setting(
        "Folders to search for them first; programs add the folder of the config.",
        default=(),
        changes=NOTHING,
    )


@settings
class Data:
    """The data and their partition; the options of a partitioner are in `data.NAME`."""

    name: str = setting("One of `tff_pfl.DATASETS`.", default="digits")
    data_dir: str = setting(
        'The folder of TFDS data sets; "": TFDS_DATA_DIR or the default of TFDS.',
        default="",
        changes=NOTHING,
    )
    num_clients: int | None = setting(
        "The number of clients.",
        _FEDERATE["num_clients"],
        default=25,
        idle={"partitioner": "natural", **_NO_FILE},
    )
    partitioner: str = setting(
        "One of `tff_pfl.PARTITIONERS`, whose options are in the section of its name, such "
        "as data.dirichlet.alpha.",
        default="dirichlet",
        idle=_NO_FILE,
    )
    merge: bool = setting(
        "Whether the original training and test splits are pooled before they are partitioned.",
        default=True,
        idle=_NO_FILE,
    )
    fractions: tuple[float, ...] | None = setting(
        "With merge: the shares of training, validation and test examples.",
        _FEDERATE["fractions"],
        default=(0.75, 0.0, 0.25),
        idle={"merge": False, **_NO_FILE},
    )
    num_validation: int = setting(
        "Without merge: the examples taken from the training split for validation.",
        _FEDERATE["num_validation"],
        default=0,
        idle=_NO_FILE,
    )
    imbalance: float = setting(
        "The number of examples of the first class over that of the last class.",
        _FEDERATE["imbalance"],
        default=1.0,
        idle=_NO_FILE,
    )
    imbalanced_test: bool = setting(
        "False: the whole test split is kept, which needs merge=False.",
        default=True,
        idle={"imbalance": 1, **_NO_FILE},
    )
    seed: int | None = setting(
        "The seed of the partition; None: that of the run.",
        whole(0, 2**63 - 1),
        default=None,
        idle=_NO_FILE,
    )
    partition_file: str = setting("A saved partition to use instead of a new one.", default="")
    normalization: str = setting(
        "The scale of images, one of `tff_pfl.datasets.NORMALIZATIONS`.", default="unit"
    )


@settings
class Model:
    """The model that clients train."""

    name: str = setting("One of `tff_pfl.MODELS`.", default="mlp")
    segments: int = setting(
        "The number of parts whose activations are computed again for gradients.",
        _BUILD["segments"],
        default=1,
    )
    compute_type: str = setting(
        "The type in which layers compute; weights are float32.",
        among(*COMPUTE_TYPES),
        default="float32",
    )
    start: str = setting(
        "A file of initial weights: .safetensors, or a Keras model; see `Model.starting_from`.",
        default="",
        changes=NOTHING,  # the identity has the weights
    )
    new_layers: tuple[str, ...] = setting(
        "The layers that the file lacks, such as a new head, by names or patterns.", default=()
    )


@settings
class Adapters:
    """Low-rank adapters of the model, which is frozen otherwise; see `tff_pfl.models.lora`."""

    rank: int = setting("The rank of the products.", _LORA["rank"], default=8)
    layers: tuple[str, ...] = setting(
        "The layers with adapters, by names or patterns.", default=("*",)
    )
    alpha: float | None = setting(
        "The scale of the products, times the rank; None: the rank.", _LORA["alpha"], default=None
    )
    trained: tuple[str, ...] = setting(
        "The layers, or weights as LAYER/WEIGHT, that are trained as they are.", default=()
    )
    frozen_down: bool = setting("Whether `down` is frozen at its start.", default=False)
    own_share: float | None = setting(
        "The share of a second adapter, NAME_own; None: no second one.",
        _LORA["own_share"],
        default=None,
    )
    frozen_type: str = setting(
        "The type of frozen kernels; bfloat16 halves their memory, for this model.compute_type.",
        _LORA["frozen_type"],
        default="float32",
    )


def _without_momentum(optimizer: str) -> bool:
    return optimizer not in OPTIMIZERS or "momentum" not in OPTIMIZERS.parameters(optimizer)


@settings
class Optimizer:
    """An optimizer by its name; of the server, or of local training."""

    optimizer: str = setting(
        'One of `tff_pfl.OPTIMIZERS`; of the server, "": the step is the mean.', default=""
    )
    learning_rate: float = setting("The learning rate.", at_least(0), default=1.0)
    momentum: float = setting(
        "The momentum, for optimizers with momentum such as sgd.",
        up_to(0, 1),
        default=0.0,
        idle={"optimizer": _without_momentum},
    )


@settings
class Aggregator:
    """The aggregator of uploads."""

    name: str = setting('One of `tff_pfl.AGGREGATORS`; "": that of the algorithm.', default="")


@settings
class Privacy:
    """Differential privacy of clients in what the server releases; off without noise."""

    epsilon: float | None = setting(
        "Epsilon for all rounds, from which the noise follows.", above(0), default=None
    )
    noise_multiplier: float | None = setting(
        "The standard deviation of the noise over the clipping norm, from which epsilon follows.",
        at_least(0),
        default=None,
    )
    delta: float | None = setting("Delta; None: num_clients ** -1.1.", inside(0, 1), default=None)
    mechanism: str = setting(
        'The server adds noise ("central"), or clients do.', among(*MECHANISMS), default="central"
    )
    bits: int = setting(
        "The bits of each uploaded number, with distributed noise.",
        whole(8, 24),
        default=20,
        idle={"mechanism": "central"},
    )
    clipping: str = setting("The clipping of uploads.", among(*CLIPPINGS), default="adaptive")
    clip_norm: float = setting(
        "The largest norm of an upload, at first if clipping is adaptive.", above(0), default=0.1
    )
    secure_sums: bool = setting(
        "Whether uploads are summed securely before the server adds noise.", default=False
    )


class Section(NamedTuple):
    """A section of a config.

    Attributes:
        kinds: The classes whose settings are its keys.
        defaults: Defaults that differ from those of the classes, or that these do not have.
        switch: The key without whose value the others have no effect; its 0 or "" is off.
        sections: Sections inside, of options of what is chosen by name.
    """

    kinds: tuple[type, ...] = ()
    defaults: Mapping[str, Any] = {}
    switch: str | None = None
    sections: tuple[str, ...] = ()

    def facts(self) -> Iterator[tuple[str, dataclasses.Field, Facts]]:
        """Yields the name, the field and the facts of each key."""
        for kind in self.kinds:
            for name, (field, found) in facts(kind).items():
                if name not in _OF_PYTHON and _kinds(field.type) <= _PLAIN:
                    yield name, field, found


def _kinds(hint) -> set[type]:
    """Returns the types of a hint such as `tuple[float, ...] | None`, without their arguments."""
    options = typing.get_args(hint) if typing.get_origin(hint) is types.UnionType else [hint]
    return {typing.get_origin(option) or option for option in options}


_LOCAL = {"optimizer": "sgd", "learning_rate": 0.1, "epochs": 5}
SECTIONS = {
    "": Section((Imports, Experiment), {"rounds": 20, "clients_per_round": 6}),
    "data": Section((Data,)),
    "model": Section((Model,), sections=("options",)),
    "adapters": Section((Adapters,), {"rank": 0}, "rank"),
    "task": Section(),
    "local": Section(
        (Optimizer, LocalTraining), _LOCAL, sections=("options", "schedule", "augmentation")
    ),
    "evaluation": Section((Evaluation,)),
    "participation": Section((Participation,), sections=("availability", "selector")),
    "early_stop": Section((EarlyStop,), {"patience": 0}, "patience"),
    "new_clients": Section((NewClients,), {"number": 0}, "number"),
    "aggregator": Section((Aggregator,), sections=("options",)),
    "privacy": Section((Privacy,)),
    "server": Section((Optimizer,), switch="optimizer", sections=("options",)),
    "attack": Section(),
    "compression": Section(),
    "algorithm": Section(),
}
"""The sections of a config by name. Those without a class have the options of a choice by name."""


class Key(NamedTuple):
    """A key of a config.

    Attributes:
        section: The name of its section, "" for the config itself.
        name: The name in the section.
        default: Its default.
        type: The type of its values.
        range: The range of its values, which may be None, or turn the section off; or `None`.
        facts: See `Facts`.
    """

    section: str
    name: str
    default: Any
    type: type
    range: Range | None
    facts: Facts

    def __str__(self) -> str:
        """Returns the key, such as "local.epochs"."""
        return f"{self.section}.{self.name}".lstrip(".")


def keys() -> Iterator[Key]:
    """Yields all keys that are settings of a class."""
    for section, content in SECTIONS.items():
        for name, field, found in content.facts():
            default = content.defaults.get(name, field.default)
            kinds, range_ = _kinds(field.type), found.range
            if range_ is not None and types.NoneType in kinds:
                range_ = range_.or_value(None)
            elif range_ is not None and name == content.switch:
                range_ = range_.or_value(default)
            (kind,) = kinds - {types.NoneType}
            yield Key(section, name, default, kind, range_, found)


def own_keys() -> Config:
    """Returns all keys with their defaults, without the options of choices by name."""
    config = Config()
    for section, content in SECTIONS.items():
        if section:
            config[section] = Config({inner: Config() for inner in content.sections})
    for key in keys():
        target = config[key.section] if key.section else config
        is_open = key.default is None
        target[key.name] = config_dict.placeholder(key.type) if is_open else key.default
    return config
