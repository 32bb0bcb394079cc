"""Writes an experiment down by the names of its parts, in the keys of a config.

A part has a name if a function made it that others find by a name: one of a registry such as
`MODELS`, `load` and `federate`. Parts that were made or changed in another way have none.
"""

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any

from tff_pfl.arguments.digests import described
from tff_pfl.arguments.kinds import function_of
from tff_pfl.arguments.recipes import Recipe, recipe_of
from tff_pfl.arguments.registry import Registry
from tff_pfl.arguments.settings import facts
from tff_pfl.clients import AVAILABILITIES, SELECTORS, Participation
from tff_pfl.data import PARTITIONERS, FederatedDataset
from tff_pfl.datasets import DATASETS, NORMALIZATIONS
from tff_pfl.experiment.capacity import fitted
from tff_pfl.local import LocalTraining
from tff_pfl.models import MODELS, TASKS
from tff_pfl.privacy import Accountant, default_delta
from tff_pfl.templates import Federation

if TYPE_CHECKING:
    from tff_pfl.experiment.experiment import Experiment

_CHANGES = ("aggregator", "privacy", "attack", "compressor")  # of an algorithm, in this order


class NoRecipeError(ValueError):
    """An error for an experiment that cannot be written down; it says which part has no name."""


class _Names:
    """The modules of the user's functions that are called by name."""

    def __init__(self):
        """Has met none."""
        self.modules: dict[str, None] = {}

    def add(self, kind: str, name: str, module: str) -> None:
        """Adds the module of a named function."""
        if module == "__main__":
            raise NoRecipeError(
                f"The {kind} {name!r} is registered in a script. Move it to a module, which the "
                "script imports."
            )
        if module.partition(".")[0] != __package__.partition(".")[0]:
            self.modules[module] = None

    def recipe(self, part: str, value: Any, kind: str, tip: str) -> Recipe:
        """Returns the recipe of a part.

        Raises:
            NoRecipeError: It has none.
        """
        found = recipe_of(value)
        if found is None or found.kind != kind:
            raise NoRecipeError(f"The {part} was not made by a name. {tip} makes one.")
        self.add(kind, found.name, found.module)
        return found

    def of_class(self, part: str, value: Any, registry: Registry) -> dict[str, Any]:
        """Returns the name and the fields of a value whose class is registered."""
        for name, made in registry.items():
            if function_of(made) is type(value):
                self.add(part, name, type(value).__module__)
                return {"name": name, **_written(part, vars(value))}
        raise NoRecipeError(f"The {part} {type(value).__name__!r} is not registered by a name.")


def recipe_of_experiment(experiment: "Experiment") -> dict[str, Any]:
    """Returns an experiment in the keys of a config, as JSON values.

    Raises:
        NoRecipeError: A part has no name.
    """
    names = _Names()
    sections = {
        **_model(experiment, names),
        "data": _data(experiment, names) | {"normalization": _normalization(experiment.model)},
        "local": _local(experiment.local, experiment.members, names),
        **_algorithm(experiment, names),
        "evaluation": _fields("evaluation", experiment.evaluation),
        "participation": _participation(experiment.participation, names),
    }
    if experiment.early_stop is not None:
        sections["early_stop"] = _fields("early stop", experiment.early_stop)
    if (chosen := experiment.new_clients) is not None:
        own = chosen.local or experiment.local
        if _local(own, experiment.members, names) != sections["local"]:
            raise NoRecipeError("The new clients have a local training of their own.")
        sections["new_clients"] = _fields("new clients", chosen)
    modules = {"imports": list(names.modules), "import_path": []}
    return {**modules, **_numbers(experiment), **sections}


def settings_of(experiment: "Experiment") -> dict[str, Any]:
    """Returns the recipe of an experiment, or without one a description of its parts."""
    try:
        return recipe_of_experiment(experiment)
    except NoRecipeError as error:
        unnamed = str(error)
    model, data = experiment.model, experiment.members
    sections = {
        "evaluation": experiment.evaluation,
        "participation": experiment.participation,
        "early_stop": experiment.early_stop,
        "new_clients": experiment.new_clients,
    }
    if loss := experiment.privacy:
        values = {"noise_multiplier": loss.noise_multiplier, "delta": loss.accountant.delta}
        sections["privacy"] = values
    return {
        "unnamed": unnamed,
        **_numbers(experiment),
        "algorithm": {
            "name": experiment.algorithm.name,
            **described(experiment.ingredients.options),
        },
        "model": {"name": model.name, "num_weights": model.num_weights},
        "task": {
            "name": model.task.name,
            "metrics": {it.name: it.better for it in model.task.quantities.values()},
        },
        "local": experiment.local.settings(),
        "data": {"name": data.name, "num_clients": data.num_clients},
        **described(sections),
    }


def _numbers(experiment) -> dict[str, int]:
    """Returns the settings that are numbers of the run itself."""
    return {
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "clients_per_round": experiment.cohort_size,
        "checkpoint_every": experiment.checkpoint_every,
    }


def _written(part: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as JSON values."""
    return {name: _plain(f"{name} of the {part}", value) for name, value in values.items()}


def _plain(subject, value):
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(subject, one) for one in value]
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    raise NoRecipeError(f"The {subject} is {described(value)!r}: no text, number or tuple.")


def _fields(part: str, value: Any, without: Container[str] = ()) -> dict[str, Any]:
    """Returns the settings of a value, but for some."""
    own = (name for name in facts(type(value)) if name not in without)
    return _written(part, {name: getattr(value, name) for name in own})


def _data(experiment, names) -> dict[str, Any]:
    made = names.recipe("data set", experiment.dataset, "data", "tff_pfl.federate(load(...))")
    if made.name not in DATASETS:
        raise NoRecipeError(
            f"The data set {made.name!r} is not registered. tff_pfl.DATASETS.register registers a "
            "function that loads it."
        )
    names.add("data set", made.name, DATASETS[made.name].__module__)
    values = dict(made.arguments)
    partitioner = values["partitioner"]
    options = PARTITIONERS.options(partitioner) | values.pop("partition_args")
    names.add("partitioner", partitioner, PARTITIONERS[partitioner].__module__)
    written = _written("data set", {"name": made.name, **values})
    return written | ({partitioner: _written("partitioner", options)} if options else {})


def _model(experiment, names) -> dict[str, Any]:
    made = names.recipe("model", experiment.model, "built model", "tff_pfl.models.build")
    chosen = dict(made.arguments)
    name = chosen["name"]
    names.add("model", name, function_of(MODELS[name]).__module__)
    task, kept = chosen.pop("task"), ("segments", "compute_type", "start", "new_layers")
    sections = {
        "model": {
            "name": name,
            **_written("model", {key: chosen[key] for key in kept}),
            "options": _written("model", chosen["chosen"]),
        }
    }
    if chosen["adapters"]:
        sections["adapters"] = _written("adapters", chosen["adapters"])
    if isinstance(task, str):
        task = TASKS[task]()
    if task is not None:
        found = names.recipe("task", task, TASKS.kind, "tff_pfl.TASKS")
        sections["task"] = {"name": found.name, **_written("task", found.arguments)}
    return sections


def _normalization(model) -> str:
    """Returns the name of the normalization of a built model."""
    made = recipe_of(model)
    mean, std = (made.arguments[key] for key in ("mean", "std")) if made else (None, ())
    found = None if mean is None else tuple(mean), tuple(std)
    for name, its in NORMALIZATIONS.items():
        if found == its or (mean is None and its[0] is None):
            return name
    raise NoRecipeError(
        f"The normalization of the model, mean={mean} and std={std}, is not in "
        "tff_pfl.datasets.NORMALIZATIONS."
    )


def _optimizer(part: str, optimizer: Any, names: _Names) -> dict[str, Any]:
    found = names.recipe(part, optimizer, "optimizer", 'tff_pfl.OPTIMIZERS["sgd"](0.1)')
    options = _written(part, found.arguments)
    written = {"optimizer": found.name, "learning_rate": options.pop("learning_rate")}
    if "momentum" in options:
        written["momentum"] = options.pop("momentum")
    return {**written, "options": options}


def _local(local: LocalTraining, dataset: FederatedDataset, names) -> dict[str, Any]:
    if local.initial_rate is not None:
        raise NoRecipeError("The local training has an initial_rate instead of the optimizer's.")
    if (largest := fitted(local, dataset).batch_size) != local.batch_size:
        raise NoRecipeError(
            f"The batch_size of the local training, {local.batch_size}, is more than any client "
            f"fills. Set it to {largest}, with which the steps are the same."
        )
    written = _optimizer("optimizer of the local training", local.optimizer, names)
    for name, section, kind in (
        ("schedule", "schedule", "schedule"),
        ("augment", "augmentation", "augmentation"),
    ):
        if (value := getattr(local, name)) is not None:
            tip = f'tff_pfl.{kind.upper()}S["..."](...)'
            found = names.recipe(f"{kind} of the local training", value, kind, tip)
            written[section] = {"name": found.name, **_written(kind, found.arguments)}
    others = {"optimizer", "schedule", "augment", "initial_rate"}
    return written | _fields("local training", local, others)


def _participation(participation: Participation, names) -> dict[str, Any]:
    chosen = {"availability": AVAILABILITIES, "selector": SELECTORS}
    return _fields("participation", participation, chosen) | {
        name: names.of_class(name, getattr(participation, name), registry)
        for name, registry in chosen.items()
    }


def _algorithm(experiment, names) -> dict[str, Any]:
    """Returns the algorithm, and what was changed of it."""
    sections: dict[str, Any] = {}
    algorithm, latest = experiment.algorithm, len(_CHANGES)
    while (found := recipe_of(algorithm)) is not None and found.kind in _CHANGES:
        if (position := _CHANGES.index(found.kind)) >= latest:
            raise NoRecipeError(
                f"The algorithm was changed by its {found.kind} before its "
                f"{_CHANGES[latest]}: a config changes {', '.join(_CHANGES)}, in this order."
            )
        arguments, latest = dict(found.arguments), position
        algorithm = arguments.pop("algorithm")
        sections |= _WRITERS[found.kind](experiment, found, arguments, names)
    tip = "tff_pfl.make"
    made = names.recipe("algorithm", algorithm, "algorithm", tip)
    options = {key: it for key, it in made.arguments.items() if key not in Federation._fields}
    if (optimizer := options.pop("server_optimizer", None)) is not None:
        sections["server"] = _optimizer("server_optimizer", optimizer, names)
    if options.pop("aggregator", None) is not None:
        raise NoRecipeError(
            "The algorithm was made with an aggregator. tff_pfl.with_aggregator replaces that of "
            "an algorithm."
        )
    return {"algorithm": {"name": made.name, **_written("algorithm", options)}, **sections}


def _aggregator(experiment, found, arguments, names) -> dict[str, Any]:
    tip = 'tff_pfl.AGGREGATORS["median"]()'
    made = names.recipe("aggregator", arguments["aggregator"], "aggregator", tip)
    options = dict(made.arguments)
    if options.pop("clients_per_round", experiment.cohort_size) != experiment.cohort_size:
        raise NoRecipeError("The aggregator was made for another number of clients.")
    return {"aggregator": {"name": made.name, "options": _written("aggregator", options)}}


def _privacy(experiment, found, arguments, names) -> dict[str, Any]:
    number, size = experiment.members.num_clients, experiment.cohort_size
    sampling = experiment.participation.sampling
    given: Accountant | None = experiment.accountant
    delta = default_delta(number) if given is None else given.delta
    if given not in (None, Accountant(number, size, delta, sampling)):
        raise NoRecipeError("The accountant counts cohorts in a way of its own.")
    if arguments.pop("seed", experiment.seed) != experiment.seed:
        raise NoRecipeError(f"The noise has another seed than the run, {experiment.seed}.")
    del arguments["clients_per_round"]
    if found.name == "distributed":
        arguments |= {"mechanism": "distributed", "clipping": "fixed"}
    return {"privacy": {"delta": delta, **_written("privacy", arguments)}}


def _attack(experiment, found, arguments, names) -> dict[str, Any]:
    names.add("attack", found.name, found.module)
    if arguments.pop("num_classes", experiment.dataset.num_classes) != (
        experiment.dataset.num_classes
    ):
        raise NoRecipeError("The attack was made for another number of classes.")
    return {"attack": {"name": found.name, **_written("attack", arguments)}}


def _compression(experiment, found, arguments, names) -> dict[str, Any]:
    tip = 'tff_pfl.COMPRESSORS["half"]()'
    made = names.recipe("compressor", arguments.pop("compressor"), "compressor", tip)
    options = _written("compressor", made.arguments) | _written("compression", arguments)
    return {"compression": {"name": made.name, **options}}


_WRITERS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "aggregator": _aggregator,
    "privacy": _privacy,
    "attack": _attack,
    "compressor": _compression,
}
