"""Builds a run from a config, for training, checks, evaluation or export."""

import functools
from collections.abc import Callable

import ml_collections
import numpy as np
import tensorflow_federated as tff

from tff_pfl import data, evaluation, models, runtime
from tff_pfl.clients.padding import Ladder, shared_capacity
from tff_pfl.config import build, parts
from tff_pfl.config.errors import ConfigError, config_errors
from tff_pfl.experiment.early_stop import EarlyStop
from tff_pfl.templates import Algorithm, PersonalizedProcess

# CPUs compute groups of clients faster than one client after the other from this mean number of
# clients in a group, and up to this number of examples times weights in a step.
_LEAST_GROUP, _SMALL_STEP = 16, 500_000


class BuiltRun:
    """The data, model and algorithm of a run, built from its config.

    Attributes:
        config: The config.
        everybody: The data of all clients.
        dataset: The data of the clients that train.
        new_clients: The data of the clients that the run holds out, or `None`.
        model: The model.
    """

    def __init__(
        self,
        config: ml_collections.ConfigDict,
        load: Callable[[str, str | None], data.LabelledImages] | None = None,
    ):
        """Builds the data and the model.

        Args:
            config: The config.
            load: See `build_dataset`.

        Raises:
            ConfigError: A value is wrong, or values contradict each other.
        """
        self.config = config
        self.everybody = build.build_dataset(config, load)
        self.dataset, self.new_clients = build.hold_out(config, self.everybody)
        self.model = build.build_model(config, self.dataset)

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm; see `build_algorithm`."""
        return build.build_algorithm(self.config, self.model, self.dataset)

    @functools.cached_property
    def process(self) -> PersonalizedProcess:
        """The process; see `build_process` and `Participation.check_process`."""
        process = build.build_process(self.config, self.model, self.dataset)
        with config_errors("participation"):
            parts.participation(self.config).check_process(process)
        return process

    @property
    def title(self) -> str:
        """The algorithm and the data set."""
        return f"{self.config.algorithm.name} on {self.config.data.name}"

    def capacity(self, clients_at_a_time: int) -> Ladder | None:
        """Returns the capacity for clients' examples; see `suitable_capacity`."""
        batch_size = self.config.local.batch_size
        return suitable_capacity(self.model, self.dataset, clients_at_a_time, batch_size)

    def early_stop(self, method: Algorithm | PersonalizedProcess) -> EarlyStop | None:
        """Returns the early stop of the run, or `None`.

        Args:
            method: The algorithm or the process.

        Raises:
            ConfigError: There are no validation examples, or no model has the metric.
        """
        stop = parts.early_stop(self.config)
        if stop is not None:
            with config_errors("early_stop"):
                stop.check(method, self.model, self.dataset, parts.evaluation_options(self.config))
        return stop

    def new_clients_evaluation(
        self, capacity: Ladder | None = None
    ) -> evaluation.NewClientsEvaluation | None:
        """Builds the evaluation of the new clients, or returns `None` if they are not evaluated.

        Args:
            capacity: See `CohortDataSource`.

        Raises:
            ConfigError: The algorithm has no model that new clients can fine-tune, or they would
                fine-tune it twice.
        """
        config, new_clients = self.config, self.new_clients
        if new_clients is None or not config.new_clients.evaluated:
            return None
        process = self.process
        starts_with_own = process.global_weights is None and process.new_client_model is None
        if starts_with_own and build.fine_tunes_own_models(config):
            epochs = config.evaluation.fine_tune_epochs
            raise ConfigError(
                f"config.evaluation.fine_tune_epochs={epochs} fine-tunes each client's own model, "
                f"but new clients of {config.algorithm.name!r} start with such a model and would "
                "fine-tune it twice. Set it to 0, or add 'fine_tuned' to "
                "config.evaluation.further_models to evaluate a fine-tuned model beside it."
            )
        with config_errors("new_clients"):
            return evaluation.NewClientsEvaluation(
                process,
                self.model,
                parts.fitted(parts.build_local(config), new_clients),
                new_clients,
                parts.evaluation_options(config),
                epochs=config.new_clients.fine_tune_epochs,
                fine_tuning=parts.fitted(parts.build_fine_tuning(config), new_clients),
                best_epoch=config.new_clients.best_epoch,
                locally_trained="locally_trained" in config.evaluation.further_models,
                first_id=new_clients.partition.metadata["num_trained"],
                capacity=capacity,
            )


def suitable_capacity(
    model: models.Model, dataset: data.FederatedDataset, clients_at_a_time: int, batch_size: int
) -> Ladder | None:
    """Returns the `CohortDataSource.capacity` for the devices: a `Ladder` if groups are faster.

    GPUs compute clients in groups of equal shapes. CPUs compute clients faster one by one, each
    with its own rows, unless groups are large, steps are small and the model has no convolutions.
    `benchmarks/benchmark.py --unequal` measures this.

    Args:
        model: The model that clients train.
        dataset: The federation's data, whose sizes are used.
        clients_at_a_time: The number of clients that are computed together.
        batch_size: The number of examples in a step.
    """
    devices, sizes = runtime.current_devices(), dataset.sizes()
    if devices is None or not sizes.any():
        return None
    ladder = Ladder(min(batch_size, shared_capacity([sizes.max()])))
    if any(map(runtime.is_gpu, devices)):
        return ladder
    convolves = any(len(w.shape) > 2 for w in tff.structure.flatten(model.weights_type))
    step = min(batch_size, sizes.mean()) * model.num_weights
    typical = np.quantile(sizes, np.linspace(0, 1, clients_at_a_time), method="inverted_cdf")
    groups = len(set(ladder.capacities(typical)))
    is_faster = clients_at_a_time >= _LEAST_GROUP * groups and step <= _SMALL_STEP
    return ladder if is_faster and not convolves else None
