"""Builds the experiment of a config: data, model and algorithm."""

import functools
import os
from collections.abc import Callable

import ml_collections
import numpy as np

from tff_pfl import algorithms, data, datasets, models
from tff_pfl.arguments.kinds import check_kind
from tff_pfl.attacks import ATTACKS, attackers_of
from tff_pfl.compression import COMPRESSORS, compressed
from tff_pfl.config.errors import ConfigError, config_errors
from tff_pfl.config.options import ERROR_FEEDBACK, FRACTION, TASK
from tff_pfl.config.parts import (
    accountant_of,
    build_local,
    build_optimizer,
    check_schedule,
    made,
)
from tff_pfl.experiment.capacity import fitted
from tff_pfl.experiment.experiment import Experiment, check_labels
from tff_pfl.experiment.run_directory import resolved
from tff_pfl.privacy import with_distributed_privacy, with_privacy
from tff_pfl.templates import AGGREGATORS, Algorithm, with_aggregator


def build_dataset(
    config: ml_collections.ConfigDict,
    load: Callable[[str, str | None], data.LabelledImages] | None = None,
) -> data.FederatedDataset:
    """Loads and partitions the data set of a config.

    Args:
        config: The config.
        load: Replaces `tff_pfl.datasets.load`.

    Raises:
        ConfigError: A value is wrong, or the partition or the cohort is impossible.
        DataNotFoundError: The data set is not prepared and cannot be downloaded.
    """
    with config_errors("data"):
        images = (load or datasets.load)(config.data.name, config.data.data_dir or None)
        if config.data.partition_file:
            partition = data.Partition.load(config.data.partition_file, labels=images.y)
            _check_whole(partition, config)
            dataset = data.FederatedDataset(
                images.x, images.y, images.num_classes, partition, images.name
            )
        else:
            natural, fractions = config.data.partitioner == "natural", config.data.fractions
            dataset = data.federate(
                images,
                num_clients=None if natural else config.data.num_clients,
                partitioner=config.data.partitioner,
                partition_args=config.data.get(config.data.partitioner, {}),
                merge=config.data.merge,
                fractions=tuple(fractions) if config.data.merge and fractions else None,
                num_validation=config.data.num_validation,
                imbalance=config.data.imbalance,
                imbalanced_test=config.data.imbalanced_test,
                seed=config.seed if config.data.seed is None else config.data.seed,
            )
    num_clients = dataset.num_clients - config.new_clients.number
    unknown = [i for i in config.attack.get("client_ids", ()) if not 0 <= i < num_clients]
    if unknown:
        raise ConfigError(
            f"config.attack.client_ids has {unknown}, but clients are 0 to {num_clients - 1}."
        )
    return dataset


def _check_whole(partition, config):
    number, num_trained = config.new_clients.number, partition.metadata.get("num_trained")
    if number and num_trained is not None:
        raise ConfigError(
            f"config.data.partition_file={config.data.partition_file!r} has only the {num_trained} "
            "clients that trained in a run, without its new clients, and "
            f"config.new_clients.number={number} would hold out more of them. Set it to 0, or save "
            "a partition of all clients with the config of that run: "
            "tff_pfl.config.build_dataset(config).partition.save(path)."
        )


def build_model(config: ml_collections.ConfigDict, dataset: data.FederatedDataset) -> models.Model:
    """Builds the model of a config, for the inputs, the labels and the task of a data set.

    Raises:
        ConfigError: A name is unknown (the message has the nearest name), a number is out of the
            model's range, or the normalization does not fit the inputs.
    """
    with config_errors("data"):
        mean, std = datasets.normalization(config.data.normalization)
        if mean is not None and dataset.x_dtype != np.uint8:
            raise ValueError(
                f"normalization={config.data.normalization!r} divides uint8 images by 255, but "
                f"the inputs of {dataset.name!r} are {dataset.x_dtype}. Choose 'none' to leave "
                "them unchanged, or register uint8 images."
            )
        if mean is not None and not {len(mean), len(std)} <= {1, dataset.image_shape[-1]}:
            raise ValueError(
                f"normalization={config.data.normalization!r} is for images with {len(mean)} "
                f"channels, but the images of {dataset.name!r} have the shape "
                f"{dataset.image_shape}. Choose 'unit' or 'half', which fit any images."
            )
    task = TASK.make(config)
    is_chosen = TASK.name_in(config) != TASK.default or any(TASK.options_in(config).values())
    with config_errors("model"):
        model = models.build(
            config.model.name,
            dataset.image_shape,
            _num_outputs(task, dataset),
            mean=mean,
            std=std,
            segments=config.model.segments,
            compute_type=config.model.compute_type,
            task=task if is_chosen else None,
            start=os.path.expanduser(config.model.start),
            new_layers=config.model.new_layers,
            adapters=config.adapters.to_dict() if config.adapters.rank else None,
            **config.model.options.to_dict(),
        )
        check_labels(model, dataset)
    return model


def _num_outputs(task, dataset) -> int | None:
    """Returns the number of a model's outputs: classes, or numbers of the labels of an example."""
    takes_classes = task is None or task.outputs == "class_logits"
    if takes_classes and dataset.num_classes is not None:
        return dataset.num_classes
    if (
        task is not None
        and task.name in ("binary", "multi_label")
        and (dataset.num_classes or 2) > 2
    ):
        raise ConfigError(
            f"config.task.name={task.name!r} needs labels 0 or 1, but {dataset.name!r} has "
            f"{dataset.num_classes} classes. Choose 'classification'."
        )
    if not isinstance(dataset.y, np.ndarray):
        return None
    return int(np.prod(dataset.y.shape[1:]))


def build_algorithm(
    config: ml_collections.ConfigDict, model: models.Model, dataset: data.FederatedDataset
) -> Algorithm:
    """Builds the algorithm of a config, with its aggregator, privacy, attack and compression.

    Raises:
        ConfigError: A value is wrong, or the config chooses a server optimizer or an aggregator
            that the algorithm cannot have.
    """
    options = config.algorithm.to_dict()
    name = options.pop("name")
    if config.server.optimizer:
        if "server_optimizer" not in algorithms.ALGORITHMS.parameters(name):
            raise ConfigError(
                f"config.server.optimizer={config.server.optimizer!r}, but the server of {name!r} "
                "does not take steps along a mean of changes. Set it to ''."
            )
        options["server_optimizer"] = build_optimizer(config, "server")
    is_poisson = config.participation.sampling == "poisson"
    federation = {
        "num_clients": dataset.num_clients,
        "clients_per_round": config.clients_per_round,
        "largest_cohort": dataset.num_clients if is_poisson else config.clients_per_round,
    }
    local = fitted(build_local(config), dataset)
    if local.augment is not None and not isinstance(dataset.x, np.ndarray):
        raise ConfigError(
            f"config.local.augmentation.name={config.local.augmentation.name!r} needs one array of "
            f"images, but {dataset.name!r} has several arrays of inputs. Set it to ''."
        )
    check_schedule(local, config)
    with config_errors("algorithm"):
        algorithm = algorithms.make(name, model, local, **federation, **options)
    if config.aggregator.name:
        with config_errors("aggregator"):
            algorithm = with_aggregator(algorithm, _build_aggregator(config))
    algorithm = _made_private(algorithm, config, dataset.num_clients)
    if config.attack.name:
        with config_errors("attack"):
            algorithm = _build_attack(config, dataset)(algorithm)
            check_kind(f"The result of the attack {config.attack.name!r}", algorithm, Algorithm)
    if config.compression.name:
        with config_errors("compression"):
            options = config.compression.to_dict()
            compressor, feedback = COMPRESSORS[options.pop("name")], options.pop(ERROR_FEEDBACK)
            algorithm = compressed(algorithm, compressor(**options), error_feedback=feedback)
    return algorithm


def _build_aggregator(config):
    name, options = config.aggregator.name, config.aggregator.options.to_dict()
    if "clients_per_round" in AGGREGATORS.parameters(name):
        options["clients_per_round"] = config.clients_per_round
    return AGGREGATORS[name](**options)


def _build_attack(config, dataset):
    """Returns the attack, `(Algorithm -> Algorithm)`, with its options."""
    options = config.attack.to_dict()
    attack, parameters = ATTACKS[options["name"]], ATTACKS.parameters(options.pop("name"))
    if "client_ids" in parameters:
        options["client_ids"] = attackers_of(options, dataset.num_clients, config.seed)
    del options[FRACTION]
    if "num_classes" in parameters:
        if dataset.num_classes is None:
            raise ConfigError(
                f"config.attack.name={config.attack.name!r} needs class labels, but the data set "
                f"{dataset.name!r} has none. Choose an attack on uploads, such as 'sign_flipped'."
            )
        options["num_classes"] = dataset.num_classes
    return functools.partial(attack, **options)


def _made_private(algorithm, config, num_clients) -> Algorithm:
    """Returns the algorithm with the privacy of a config, or unchanged without privacy."""
    accountant, noise = accountant_of(config, num_clients), config.privacy.noise_multiplier
    if accountant is None:
        return algorithm
    with config_errors("privacy"):
        if noise is None:
            noise = accountant.noise_multiplier(config.privacy.epsilon, config.rounds)
        options = {
            "noise_multiplier": noise,
            "clients_per_round": config.clients_per_round,
            "clip_norm": config.privacy.clip_norm,
        }
        if config.privacy.mechanism == "distributed":
            return with_distributed_privacy(algorithm, bits=config.privacy.bits, **options)
        return with_privacy(
            algorithm,
            clipping=config.privacy.clipping,
            secure_sums=config.privacy.secure_sums,
            seed=config.seed,
            **options,
        )


def experiment_of(
    config: ml_collections.ConfigDict,
    load: Callable[[str, str | None], data.LabelledImages] | None = None,
) -> Experiment:
    """Builds the experiment of a config.

    Args:
        config: The config.
        load: See `build_dataset`.

    Raises:
        ConfigError: A value is wrong, or values contradict each other.
        DataNotFoundError: See `build_dataset`.
    """
    dataset = build_dataset(config, load)
    new_clients = made(config, "new_clients", local=build_local(config))
    with config_errors("new_clients"):
        members = dataset if new_clients is None else new_clients.split(dataset)[0]
    settings, config = resolved(config), config.copy_and_resolve_references()
    if config.clients_per_round is None:
        config.clients_per_round = members.num_clients
    participation = made(config, "participation")
    with config_errors("clients_per_round"):
        participation.check(members.num_clients, config.clients_per_round)
    model = build_model(config, members)
    with config_errors(None):
        experiment = Experiment(
            build_algorithm(config, model, members),
            dataset,
            rounds=config.rounds,
            clients_per_round=config.clients_per_round,
            seed=config.seed,
            evaluation=made(config, "evaluation"),
            participation=participation,
            early_stop=made(config, "early_stop"),
            new_clients=new_clients,
            accountant=accountant_of(config, members.num_clients),
            checkpoint_every=config.checkpoint_every,
        ).written_as(settings)
    with config_errors("evaluation"):
        experiment.check_evaluated()
    return experiment
