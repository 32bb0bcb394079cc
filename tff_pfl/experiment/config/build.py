"""From a config to what a run is made of."""

import functools
import os
from collections.abc import Callable

import ml_collections
import numpy as np

from tff_pfl import algorithms, data, evaluation, models
from tff_pfl.attacks import ATTACKS, attackers_of
from tff_pfl.clients import Participation
from tff_pfl.compression import COMPRESSORS, compressed
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.config.local import (
    build_fine_tuning,
    build_local,
    build_optimizer,
    check_schedule,
)
from tff_pfl.experiment.config.options import (
    AVAILABILITY,
    ERROR_FEEDBACK,
    FRACTION,
)
from tff_pfl.experiment.config.private import made_private
from tff_pfl.experiment.config.sections import values_of
from tff_pfl.experiment.config.splits import check_splits
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.kinds import check_kind
from tff_pfl.local import examples_type
from tff_pfl.templates import (
    AGGREGATORS,
    Algorithm,
    PersonalizedProcess,
    compose,
    with_aggregator,
)

FURTHER_MODELS = ("locally_trained", "fine_tuned")
"""What `config.evaluation.further_models` may have."""


def build_dataset(
    config: ml_collections.ConfigDict,
    load: Callable[[str, str | None], data.LabelledImages] | None = None,
) -> data.FederatedDataset:
    """Loads and partitions the data set of a config.

    Args:
        config: The config.
        load: In the place of `tff_pfl.data.load`.

    Raises:
        ConfigError: If a value is wrong, or the partition or the cohort is impossible.
        DataNotFoundError: If the data set is neither prepared nor can be downloaded.
    """
    with values_of("data"):
        images = (load or data.load)(config.data.name, config.data.data_dir or None)
        if config.data.partition_file:
            if not os.path.exists(config.data.partition_file):
                raise ConfigError(
                    f"config.data.partition_file: there is no file {config.data.partition_file!r}."
                )
            partition = data.Partition.load(config.data.partition_file, labels=images.y)
            _check_whole(partition, config)
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
                imbalance=config.data.imbalance,
                imbalanced_test=config.data.imbalanced_test,
                seed=config.seed,
            )
    if config.new_clients.number >= dataset.num_clients:
        raise ConfigError(
            f"config.new_clients.number={config.new_clients.number}, but the federation has only "
            f"{dataset.num_clients} clients. Choose 0 to {dataset.num_clients - 1}: some train."
        )
    num_clients = dataset.num_clients - config.new_clients.number
    unknown = [i for i in config.attack.get("client_ids", ()) if not 0 <= i < num_clients]
    if unknown:
        raise ConfigError(
            f"config.attack.client_ids has {unknown}, but clients are 0 to {num_clients - 1}."
        )
    if config.clients_per_round > num_clients:
        raise ConfigError(
            f"config.clients_per_round={config.clients_per_round}, but the federation has only "
            f"{num_clients} clients that train. Choose 1 to {num_clients}."
        )
    with values_of("participation"):
        participation(config).check(num_clients, config.clients_per_round)
    check_splits(config, dataset, num_clients)
    return dataset


def _check_whole(partition, config):
    number, num_trained = config.new_clients.number, partition.metadata.get("num_trained")
    if number and num_trained is not None:
        raise ConfigError(
            f"config.data.partition_file={config.data.partition_file!r} has no more than the "
            f"{num_trained} clients that a run did not hold out, of which "
            f"config.new_clients.number={number} would hold out {number} again, others than that "
            "run. Set it to 0, or take a file of all clients: "
            "experiment.build_dataset(config).partition.save(path), with the config of that run."
        )


def hold_out(
    config: ml_collections.ConfigDict, dataset: data.FederatedDataset
) -> tuple[data.FederatedDataset, data.FederatedDataset | None]:
    """The clients of a data set that train, and those that are new to the model, if any."""
    number = config.new_clients.number
    if not number:
        return dataset, None
    first = dataset.num_clients - number
    ids = range(dataset.num_clients)
    return tuple(dataset.of(part, num_trained=first) for part in (ids[:first], ids[first:]))


def build_model(config: ml_collections.ConfigDict, dataset: data.FederatedDataset) -> models.Model:
    """The model of a config, for the images and classes of a data set.

    Raises:
        ConfigError: For unknown names, with the nearest one; numbers that are none of the model's;
            or a normalization of bytes for inputs that are none.
    """
    with values_of("data"):
        mean, std = data.normalization(config.data.normalization)
        if mean is not None and dataset.x_dtype != np.uint8:
            raise ValueError(
                f"normalization={config.data.normalization!r} is of images of bytes, which it "
                f"divides by 255, but the inputs of {dataset.name!r} are {dataset.x_dtype}. Choose "
                "'none' to take them as they are, or register images as uint8."
            )
        channels = {1, dataset.image_shape[-1]}
        if mean is not None and not {len(mean), len(std)} <= channels:
            raise ValueError(
                f"normalization={config.data.normalization!r} is of images with {len(mean)} "
                f"channels, but those of {dataset.name!r} are of shape {dataset.image_shape}. "
                "Choose 'unit' or 'half', which are of any."
            )
    with values_of("model"):
        model = models.build(
            config.model.name,
            dataset.image_shape,
            dataset.num_classes,
            mean=mean,
            std=std,
            segments=config.model.segments,
            compute_type=config.model.compute_type,
            **config.model.options.to_dict(),
        )
        model.check_classes(dataset.num_classes)
    return model


def evaluation_options(config: ml_collections.ConfigDict) -> evaluation.EvaluationOptions:
    """What a config evaluates."""
    options = config.evaluation
    return evaluation.EvaluationOptions(
        split=options.split,
        validation=options.validation,
        clients=options.clients,
        clients_per_call=options.clients_per_call,
        generalization=options.generalization,
        synthetic=tuple(options.synthetic),
        subsample=options.subsample,
        late_share=options.late_share,
        seed=config.seed,
    )


def participation(config: ml_collections.ConfigDict) -> Participation:
    """Who is selected in a round of a config, and who of them reports.

    Raises:
        ConfigError: If a value is wrong, or some do not fit together.
    """
    with values_of("participation"):
        availability = AVAILABILITY.make(config)
        return Participation(**config.participation.to_dict() | {"availability": availability})


def early_stop(config: ml_collections.ConfigDict) -> EarlyStop | None:
    """What ends a run of a config early, if anything does.

    Raises:
        ConfigError: If a value is wrong.
    """
    options = config.early_stop
    with values_of("early_stop"):
        return EarlyStop(**options.to_dict()) if options.patience else None


def build_early_stop(
    config: ml_collections.ConfigDict,
    method: Algorithm | PersonalizedProcess,
    model: models.Model,
    dataset: data.FederatedDataset,
) -> EarlyStop | None:
    """The same, for data and models that have what it needs.

    Raises:
        ConfigError: If they have not.
    """
    stop = early_stop(config)
    if stop is not None:
        with values_of("early_stop"):
            stop.check(method, model, dataset, evaluation_options(config))
    return stop


def build_new_clients_evaluation(
    config: ml_collections.ConfigDict,
    process: PersonalizedProcess,
    model: models.Model,
    new_clients: data.FederatedDataset | None,
    capacity: str | None = None,
) -> evaluation.NewClientsEvaluation | None:
    """The evaluation of the new clients of a config, if it has any, and they are evaluated.

    Raises:
        ConfigError: If the algorithm has nothing that they could fine-tune, or it was before.
    """
    if new_clients is None or not config.new_clients.evaluated:
        return None
    if process.global_weights is None and _fine_tunes_own_models(config):
        raise ConfigError(
            f"config.evaluation.fine_tune_epochs={config.evaluation.fine_tune_epochs} is of each "
            f"client's own model, with which new clients of {config.algorithm.name!r} begin: they "
            "would fine-tune it twice. Add 'fine_tuned' to config.evaluation.further_models, which "
            "evaluates that beside the own model, or set it to 0."
        )
    with values_of("new_clients"):
        return evaluation.NewClientsEvaluation(
            process,
            model,
            build_local(config),
            new_clients,
            epochs=config.new_clients.fine_tune_epochs,
            fine_tuning=build_fine_tuning(config),
            best_epoch=config.new_clients.best_epoch,
            locally_trained="locally_trained" in config.evaluation.further_models,
            first_id=new_clients.partition.metadata["num_trained"],
            split=config.evaluation.split,
            clients_per_call=config.evaluation.clients_per_call,
            capacity=capacity,
            seed=config.seed,
        )


def build_algorithm(
    config: ml_collections.ConfigDict, model: models.Model, dataset: data.FederatedDataset
) -> Algorithm:
    """The algorithm of a config, with all that the config changes of it.

    Raises:
        ConfigError: If a value is wrong, or the algorithm has no server optimizer or aggregator
            that could be chosen.
    """
    options = config.algorithm.to_dict()
    name = options.pop("name")
    if config.server.optimizer:
        if "server_optimizer" not in algorithms.ALGORITHMS.parameters(name):
            raise ConfigError(
                f"config.server.optimizer={config.server.optimizer!r}, but {name!r} takes none: "
                "its server does not step along a mean of changes. Set it to ''."
            )
        options["server_optimizer"] = build_optimizer(config, "server")
    federation = {
        "num_clients": dataset.num_clients,
        "clients_per_round": config.clients_per_round,
        "largest_cohort": _largest_cohort(config, dataset.num_clients),
    }
    local = build_local(config)
    check_schedule(local, config)
    with values_of("algorithm"):
        algorithm = algorithms.make(name, model, local, **federation, **options)
    if config.aggregator.name:
        with values_of("aggregator"):
            algorithm = with_aggregator(algorithm, _build_aggregator(config))
    algorithm = made_private(algorithm, config, dataset.num_clients)
    if config.attack.name:
        with values_of("attack"):
            algorithm = _build_attack(config, dataset)(algorithm)
            check_kind(f"What the attack {config.attack.name!r} returns", algorithm, Algorithm)
    if config.compression.name:
        with values_of("compression"):
            algorithm = _compressed(algorithm, config)
    if _fine_tunes_own_models(config):
        algorithm = _evaluating("fine_tuned", algorithm, config, model)
    return algorithm


def _largest_cohort(config, num_clients) -> int:
    """With Poisson sampling, everybody may be selected at once."""
    poisson = config.participation.sampling == "poisson"
    return num_clients if poisson else config.clients_per_round


def _build_aggregator(config):
    name, options = config.aggregator.name, config.aggregator.options.to_dict()
    if "clients_per_round" in AGGREGATORS.parameters(name):
        options["clients_per_round"] = config.clients_per_round
    return AGGREGATORS[name](**options)


def _build_attack(config, dataset):
    """`(Algorithm -> Algorithm)`."""
    options = config.attack.to_dict()
    attack, parameters = ATTACKS[options["name"]], ATTACKS.parameters(options.pop("name"))
    if "client_ids" in parameters:
        options["client_ids"] = attackers_of(options, dataset.num_clients, config.seed)
        del options[FRACTION]
    if "num_classes" in parameters:
        options["num_classes"] = dataset.num_classes
    return functools.partial(attack, **options)


def _compressed(algorithm, config) -> Algorithm:
    options = config.compression.to_dict()
    compressor, feedback = COMPRESSORS[options.pop("name")], options.pop(ERROR_FEEDBACK)
    return compressed(algorithm, compressor(**options), error_feedback=feedback)


def build_process(
    config: ml_collections.ConfigDict, model: models.Model, dataset: data.FederatedDataset
) -> PersonalizedProcess:
    """The algorithm of a config as a process, with the models that are evaluated.

    Raises:
        ConfigError: See `build_algorithm`; or a further model needs a global one that is not there.
    """
    algorithm = build_algorithm(config, model, dataset)
    with values_of("evaluation.further_models"):
        further = {
            name: _evaluating(name, algorithm, config, model)
            for name in config.evaluation.further_models
        }
    type_ = examples_type(dataset.image_shape, np.dtype(dataset.x_dtype).type)
    with values_of(None):  # attacks, privacy and compression are traced with the method
        return compose(algorithm, type_, config.seed, further_models=further)


def _evaluating(name, algorithm, config, model) -> Algorithm:
    """The algorithm, with one of `FURTHER_MODELS` in the place of each client's own."""
    if name == "locally_trained":
        return evaluation.locally_trained(algorithm, model, build_local(config))
    epochs = config.evaluation.fine_tune_epochs
    return evaluation.fine_tuned(algorithm, model, build_fine_tuning(config), epochs=epochs)


def _fine_tunes_own_models(config) -> bool:
    """Whether what is evaluated as a client's own model is fine-tuned, not another beside it."""
    options = config.evaluation
    return bool(options.fine_tune_epochs) and "fine_tuned" not in options.further_models
