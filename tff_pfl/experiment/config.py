"""Configs: one `ml_collections.ConfigDict` describes a run completely.

`default_config` documents every key. A file in `configs/` returns a copy with its own values;
flags such as `--config.rounds=50` override single ones.
"""

import contextlib
import inspect
import types
import typing
from collections.abc import Iterator

import ml_collections
import numpy as np
import tensorflow_federated as tff
from ml_collections import config_dict

from tff_pfl import algorithms, data, evaluation, models
from tff_pfl.attacks import scaled_uploads
from tff_pfl.experiment.config_numbers import number_ranges
from tff_pfl.local import LocalSGD, examples_type
from tff_pfl.names import check_names
from tff_pfl.templates import PersonalizedProcess, compose
from tff_pfl.templates.errors import TemplateError

OPTIMIZERS = {
    "sgd": tff.learning.optimizers.build_sgdm,
    "adagrad": tff.learning.optimizers.build_adagrad,
    "adam": tff.learning.optimizers.build_adam,
    "adamw": tff.learning.optimizers.build_adamw,
    "rmsprop": tff.learning.optimizers.build_rmsprop,
    "yogi": tff.learning.optimizers.build_yogi,
}


class ConfigError(ValueError):
    """A config that does not describe a run; the message names the key and what would be right."""


@contextlib.contextmanager
def _values_of(section: str):
    """What a builder refuses in here is a value of `config.<section>`."""
    try:
        yield
    except (ValueError, TemplateError) as error:
        raise ConfigError(f"config.{section}: {error}") from error


def default_config(algorithm: str = "fedavg") -> ml_collections.ConfigDict:
    """All keys of a config, for an algorithm with its own default hyper-parameters."""
    config = ml_collections.ConfigDict()
    config.seed = 0  # of everything: partition, initial weights, cohorts, batches
    config.rounds = 20
    config.clients_per_round = 6

    config.data = ml_collections.ConfigDict()
    config.data.name = "digits"  # one of tff_pfl.data.DATASETS
    config.data.data_dir = ""  # prepared TFDS data sets; empty: TFDS_DATA_DIR, then TFDS's own
    config.data.num_clients = 25  # not used by the natural partitioner
    config.data.partitioner = "dirichlet"  # classes_per_client, dirichlet, iid or natural
    config.data.dirichlet = ml_collections.ConfigDict()  # arguments of this partitioner
    config.data.dirichlet.alpha = 0.3  # concentration: the smaller, the more skewed
    config.data.dirichlet.min_examples = 10  # of a client; drawn again until all have them
    config.data.classes_per_client = ml_collections.ConfigDict()
    config.data.classes_per_client.classes = 2
    config.data.classes_per_client.assignment = "ordered"  # or random
    config.data.merge = True  # pool the original train and test splits before partitioning
    config.data.fractions = (0.75, 0.0, 0.25)  # with merge: train, validation, test of a client
    config.data.num_validation = 0  # without merge: examples cut off the training split
    config.data.partition_file = ""  # a saved partition to use instead of making one
    config.data.normalization = "unit"  # one of tff_pfl.data.NORMALIZATIONS

    config.model = ml_collections.ConfigDict()
    config.model.name = "mlp"  # one of tff_pfl.models.ZOO
    config.model.options = ml_collections.ConfigDict()  # further arguments of the network

    config.local = ml_collections.ConfigDict()
    config.local.optimizer = "sgd"  # a key of OPTIMIZERS
    config.local.learning_rate = 0.1
    config.local.momentum = 0.0  # of sgd
    config.local.weight_decay = 0.0  # added to the gradient, times the weights
    config.local.clip_norm = config_dict.placeholder(float)  # the longest gradient, before that
    config.local.epochs = 5
    config.local.steps = config_dict.placeholder(int)  # so many steps, in place of epochs
    config.local.batch_size = 50
    config.local.learning_rate_decay = 1.0  # factor per round
    config.local.drop_remainder = False  # leave out partial batches, but not a client's only one
    config.local.persist_optimizer_state = False  # a client's optimizer goes on in its next round

    config.evaluation = ml_collections.ConfigDict()
    config.evaluation.every = 5  # rounds; the last round is always evaluated; 0: only the last
    config.evaluation.split = "test"  # or "validation", for tuning
    config.evaluation.fine_tune_epochs = 0  # of a client's own model before it is evaluated
    config.evaluation.fine_tune_learning_rate = config_dict.placeholder(float)  # None: local's
    config.evaluation.clients_per_call = 25  # evaluated at a time; bounds memory
    config.evaluation.generalization = "never"  # or "last", "always": on other clients' examples
    config.evaluation.synthetic = (0.5,)  # fractions of the other clients, for S-acc
    config.evaluation.subsample = False  # of other clients', as many examples as the client has

    config.new_clients = ml_collections.ConfigDict()
    config.new_clients.number = 0  # the last clients: they do not train, but at the end fine-tune
    config.new_clients.fine_tune_epochs = 20  # the global model, and are evaluated

    config.attack = ml_collections.ConfigDict()
    config.attack.client_ids = ()  # clients that scale what they upload; none: there is no attack
    config.attack.factor = -1.0  # by this number, which may be nan

    config.checkpoint_every = 1  # rounds

    config.paper = ml_collections.ConfigDict()  # numbers of the paper, for the reader
    return with_algorithm(config, algorithm)


def with_algorithm(config: ml_collections.ConfigDict, name: str) -> ml_collections.ConfigDict:
    """Sets `config.algorithm`: its name, and all of its hyper-parameters at their defaults."""
    parameters = inspect.signature(algorithms.ALGORITHMS[name]).parameters
    config.algorithm = ml_collections.ConfigDict({"name": name})
    for key, default in algorithms.hyperparameters(name).items():
        if default is None:
            default = config_dict.placeholder(_optional_type(parameters[key].annotation))
        config.algorithm[key] = default
    return config


def config_of_run(settings: typing.Any) -> ml_collections.ConfigDict:
    """The config of a run from its `config.json`.

    Raises:
        ConfigError: If it is not a config of this version.
    """
    try:
        config = default_config(settings["algorithm"]["name"])
        # What earlier versions did not have, and did as its defaults say, may be missing.
        missing = set(config) - set(settings) - {"attack", "new_clients", "paper"}
        if missing:
            raise ValueError(f"{', '.join(sorted(missing))} are missing")
        with config.unlocked():
            config.update(settings)
        check_config(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"config.json describes no run of this version: {error}") from error
    return config


def _leaves(
    config: ml_collections.ConfigDict, prefix: str = ""
) -> Iterator[tuple[str, typing.Any]]:
    """`(key, value)` of all sections, keys such as "local.epochs"."""
    for name, value in config.items():
        if isinstance(value, ml_collections.ConfigDict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _may_be_none(key: str, default, algorithm: str) -> bool:
    section, _, option = key.partition(".")
    if default is None or section != "algorithm" or option == "name":
        return default is None
    annotation = inspect.signature(algorithms.ALGORITHMS[algorithm]).parameters[option].annotation
    return types.NoneType in typing.get_args(annotation)


def _optional_type(annotation) -> type:
    """The type of values of `T | None`, as flags parse them: `tuple` for any iterable."""
    options = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else ()
    options = [option for option in options if option is not type(None)]
    if len(options) != 1:
        return object
    return tuple if typing.get_origin(options[0]) is not None else options[0]


def check_config(config: ml_collections.ConfigDict) -> None:
    """Checks what needs no data.

    Raises:
        ConfigError: It names the first key that is wrong, and what would be right.
    """
    valid = default_config()
    for section in (None, "data", "local", "model", "evaluation", "new_clients", "attack"):
        found, known = (config, valid) if section is None else (config[section], valid[section])
        check_names("config key", found, known, error=ConfigError)
    name = config.algorithm.name
    check_names("algorithm", [name], algorithms.ALGORITHMS, error=ConfigError)
    chosen = set(config.algorithm) - {"name"}
    check_names(
        f"hyper-parameter of {name!r}",
        chosen,
        algorithms.hyperparameters(name),
        error=ConfigError,
        tip=f"They come with the algorithm, as in --config=configs/digits.py:{name}.",
    )
    check_names("model", [config.model.name], models.ZOO, error=ConfigError)
    check_names("optimizer", [config.local.optimizer], OPTIMIZERS, error=ConfigError)
    check_names("split", [config.evaluation.split], ("test", "validation"), error=ConfigError)
    check_names(
        f"option of model {config.model.name!r}",
        config.model.options,
        models.options(config.model.name),
        error=ConfigError,
    )
    values = dict(_leaves(config))
    valid.model.options = models.options(config.model.name)
    for key, default in _leaves(with_algorithm(valid, name)):
        if values.get(key, default) is None and not _may_be_none(key, default, name):
            kind = type(default).__name__
            raise ConfigError(f"config.{key} is None, but must be of type {kind}.")
    for key, range_ in number_ranges(config).items():
        if values[key] is not None:  # where it may not be, it was refused above
            range_.check(f"config.{key}", values[key], ConfigError)
    with _values_of("evaluation"):
        evaluation_options(config)


def build_dataset(config: ml_collections.ConfigDict) -> data.FederatedDataset:
    """Loads and partitions the data set of a config.

    Raises:
        ConfigError: If a value is wrong, or the partition or the cohort is impossible.
        DataNotFoundError: If the data set is neither prepared nor can be downloaded.
    """
    with _values_of("data"):
        images = data.load(config.data.name, config.data.data_dir or None)
        if config.data.partition_file:
            partition = data.Partition.load(config.data.partition_file, labels=images.y)
            dataset = data.FederatedDataset(
                images.x, images.y, images.num_classes, partition, images.name
            )
        else:
            natural = config.data.partitioner == "natural"
            dataset = data.federate(
                images,
                num_clients=None if natural else config.data.num_clients,
                partitioner=config.data.partitioner,
                partition_args=config.data.get(config.data.partitioner, {}),
                merge=config.data.merge,
                fractions=tuple(config.data.fractions) if config.data.merge else None,
                num_validation=config.data.num_validation,
                seed=config.seed,
            )
    check_split(dataset, config.evaluation.split)
    if config.new_clients.number >= dataset.num_clients:
        raise ConfigError(
            f"config.new_clients.number={config.new_clients.number}, but the federation has only "
            f"{dataset.num_clients} clients. Choose 0 to {dataset.num_clients - 1}: some train."
        )
    num_clients = dataset.num_clients - config.new_clients.number
    strangers = [i for i in config.attack.client_ids if not 0 <= i < num_clients]
    if strangers:
        raise ConfigError(
            f"config.attack.client_ids has {strangers}, but clients are 0 to {num_clients - 1}."
        )
    if config.clients_per_round > num_clients:
        raise ConfigError(
            f"config.clients_per_round={config.clients_per_round}, but the federation has only "
            f"{num_clients} clients that train. Choose 1 to {num_clients}."
        )
    return dataset


def hold_out(
    config: ml_collections.ConfigDict, dataset: data.FederatedDataset
) -> tuple[data.FederatedDataset, data.FederatedDataset | None]:
    """The clients of a data set that train, and those that are new to the model, if any."""
    number = config.new_clients.number
    if not number:
        return dataset, None
    first = dataset.num_clients - number
    return dataset.of(range(first)), dataset.of(range(first, dataset.num_clients))


def check_split(dataset: data.FederatedDataset, split: str) -> None:
    """Checks that there is something to evaluate on.

    Raises:
        ConfigError: If no client has examples in the split.
    """
    if not dataset.sizes(split).any():
        raise ConfigError(
            f"The split to evaluate on is {split!r}, but no client has {split} examples. Before "
            "a run, config.data.fractions, or without merge config.data.num_validation, gives them "
            "some."
        )


def build_model(config: ml_collections.ConfigDict, dataset: data.FederatedDataset) -> models.Model:
    """The model of a config, for the images and classes of a data set."""
    with _values_of("data"):
        mean, std = data.normalization(config.data.normalization)
    with _values_of("model"):
        return models.build(
            config.model.name,
            dataset.image_shape,
            dataset.num_classes,
            mean=mean,
            std=std,
            **config.model.options.to_dict(),
        )


def build_local(config: ml_collections.ConfigDict, learning_rate: float | None = None) -> LocalSGD:
    """The local training of a config, or the same with another learning rate."""
    local = config.local
    if learning_rate is None:
        learning_rate = local.learning_rate
    if local.momentum and local.optimizer != "sgd":
        raise ConfigError(
            f"config.local.momentum={local.momentum} is of sgd, but config.local.optimizer is "
            f"{local.optimizer!r}. Set it to 0."
        )
    options = {"momentum": local.momentum} if local.momentum else {}
    with _values_of("local"):
        return LocalSGD(
            optimizer=OPTIMIZERS[local.optimizer](learning_rate, **options),
            epochs=local.epochs,
            steps=local.steps,
            batch_size=local.batch_size,
            learning_rate_decay=local.learning_rate_decay,
            weight_decay=local.weight_decay,
            drop_remainder=local.drop_remainder,
            persist_optimizer_state=local.persist_optimizer_state,
            clip_norm=local.clip_norm,
        )


def evaluation_options(config: ml_collections.ConfigDict) -> evaluation.EvaluationOptions:
    """What a config evaluates."""
    options = config.evaluation
    return evaluation.EvaluationOptions(
        split=options.split,
        clients_per_call=options.clients_per_call,
        generalization=options.generalization,
        synthetic=tuple(options.synthetic),
        subsample=options.subsample,
        seed=config.seed,
    )


def build_new_clients_evaluation(
    config: ml_collections.ConfigDict,
    process: PersonalizedProcess,
    model: models.Model,
    new_clients: data.FederatedDataset | None,
    capacity: str | None = None,
) -> evaluation.NewClientsEvaluation | None:
    """The evaluation of the new clients of a config, if it has any."""
    if new_clients is None:
        return None
    with _values_of("new_clients"):
        return evaluation.NewClientsEvaluation(
            process,
            model,
            build_local(config),
            new_clients,
            epochs=config.new_clients.fine_tune_epochs,
            first_id=new_clients.partition.metadata["clients"][0],
            split=config.evaluation.split,
            clients_per_call=config.evaluation.clients_per_call,
            capacity=capacity,
            seed=config.seed,
        )


def build_process(
    config: ml_collections.ConfigDict, model: models.Model, dataset: data.FederatedDataset
) -> PersonalizedProcess:
    """The algorithm of a config, as a process; it evaluates fine-tuned models if that is asked."""
    local = build_local(config)
    with _values_of("algorithm"):
        algorithm = algorithms.make(
            config.algorithm.name,
            model,
            local,
            num_clients=dataset.num_clients,
            clients_per_round=config.clients_per_round,
            **{key: value for key, value in config.algorithm.items() if key != "name"},
        )
    algorithm = scaled_uploads(
        algorithm, client_ids=tuple(config.attack.client_ids), factor=config.attack.factor
    )
    if epochs := config.evaluation.fine_tune_epochs:
        tuning = build_local(config, config.evaluation.fine_tune_learning_rate)
        algorithm = evaluation.fine_tuned(algorithm, model, tuning, epochs=epochs)
    return compose(
        algorithm,
        examples_type(dataset.image_shape, np.dtype(dataset.x_dtype).type),
        config.seed,
    )
