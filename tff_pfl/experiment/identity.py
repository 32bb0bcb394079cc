"""States all that the numbers of a run depend on, so that no run is taken for another."""

from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.digests import described
from tff_pfl.arguments.settings import NUMBERS
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.changes import changes_of
from tff_pfl.experiment.fingerprint import fingerprint
from tff_pfl.local import Batch
from tff_pfl.templates import PersonalizedProcess
from tff_pfl.tracing.equality import elementwise_equality

if TYPE_CHECKING:
    from tff_pfl.experiment.experiment import Experiment

OF_SOFTWARE = ("fingerprints.rounds", "fingerprints.models", "fingerprints.evaluation")
"""The keys of an identity that may differ between versions of software."""

OF_EVALUATION = ("fingerprints.models", "fingerprints.evaluation", "evaluate", "quantities")
"""The keys of an identity that do not concern the state of a run, but its metrics."""


def of_computations(process: PersonalizedProcess) -> dict[str, str]:
    """Returns the fingerprints `OF_SOFTWARE`, which are computed once for each process."""
    kept = process.__dict__  # as long as the process lives
    if "_fingerprints" not in kept:
        examples, evaluated = process.client_type.data, [process.evaluated_model]
        if process.global_model is not process.evaluated_model:
            evaluated.append(process.global_model)
        models = [process.personalize, *process.further_models.values()]
        models += filter(None, [process.global_weights])
        kept["_fingerprints"] = {
            "rounds": fingerprint(process.initialize, process.next, process.initialize_client),
            "models": fingerprint(*models),
            "evaluation": fingerprint(*(_metrics(model, examples) for model in evaluated)),
        }
    return kept["_fingerprints"]


def _metrics(model, examples) -> tff.Computation:
    """Returns the computation of the loss and the metrics of a batch."""
    weight, seed = tff.TensorType(np.float32, [None]), tff.TensorType(np.int32, [2])

    @tff.tensorflow.computation(model.weights_type, examples.x, examples.y, weight, seed)
    @elementwise_equality()
    def measured(weights, x, y, weight, seed):
        return model.finalized(model.sums(weights, Batch(x, y, weight, seed)))

    return measured


def fingerprints(dataset: FederatedDataset, process: PersonalizedProcess) -> dict[str, str]:
    """Returns the fingerprints of the data of the clients that train, and of a process."""
    data = {"data": dataset.fingerprint, "inputs": dataset.inputs_fingerprint}
    return data | of_computations(process)


def of_run(experiment: "Experiment") -> dict[str, Any]:
    """Returns all that a run depends on as JSON values."""
    process, options = experiment.process, vars(experiment.evaluation)
    quantities = process.evaluated_model.task.quantities
    chosen = {k: v for k, v in options.items() if changes_of(f"evaluation.{k}") == NUMBERS}
    return {
        "fingerprints": fingerprints(experiment.members, process),
        "noise_multiplier": process.algorithm.noise_multiplier,
        "clients_per_round": experiment.cohort_size,
        "participation": described(experiment.participation),
        "quantities": {name: it._asdict() for name, it in quantities.items()},
        "evaluate": described(chosen),
    }
