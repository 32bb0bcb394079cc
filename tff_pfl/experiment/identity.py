"""States all that the numbers of a run depend on, so that no run is taken for another."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow_federated as tff

from tff_pfl.arguments.digests import described
from tff_pfl.arguments.settings import NUMBERS
from tff_pfl.data import FederatedDataset
from tff_pfl.experiment.changes import changes_of
from tff_pfl.experiment.experiment import Experiment
from tff_pfl.experiment.fingerprint import fingerprint
from tff_pfl.experiment.run_directory import flatten
from tff_pfl.local import Batch
from tff_pfl.templates import PersonalizedProcess
from tff_pfl.tracing.equality import elementwise_equality

DESCRIPTIONS = {
    "data": "the fingerprint of its data and their partition (partition.npz)",
    "inputs": "the fingerprint of its inputs, which covers every bit,",
    "rounds": "the fingerprint of its method, options, local training, model, loss and preprocess",
    "models": "the fingerprint of the computation of its models",
    "evaluation": "the fingerprint of its metrics",
}
"""Descriptions of keys of an identity that do not speak for themselves."""

COMPUTATIONS = ("rounds", "models", "evaluation")
"""The keys of fingerprints that may differ between versions of software."""


def of_computations(process: PersonalizedProcess) -> dict[str, str]:
    """Returns fingerprints of a process, which are computed once for each process."""
    kept = process.__dict__  # as long as the process lives
    if "_fingerprints" not in kept:
        models = [process.personalize, *process.further_models.values()]
        models += filter(None, [process.global_weights])
        kept["_fingerprints"] = {
            "rounds": fingerprint(process.initialize, process.next, process.initialize_client),
            "models": fingerprint(*models),
            "evaluation": fingerprint(_metrics(process)),
        }
    return kept["_fingerprints"]


def _metrics(process) -> tff.Computation:
    """Returns the computation of the loss and the metrics of a batch."""
    model, examples = process.evaluated_model, process.client_type.data
    weight, seed = tff.TensorType(np.float32, [None]), tff.TensorType(np.int32, [2])

    @tff.tensorflow.computation(model.weights_type, examples.x, examples.y, weight, seed)
    @elementwise_equality()
    def measured(weights, x, y, weight, seed):
        return model.finalized(model.sums(weights, Batch(x, y, weight, seed)))

    return measured


def stated(experiment: Experiment, computation: Mapping[str, str] | None = None) -> Experiment:
    """Returns the experiment with what it computes among its settings.

    Args:
        experiment: The experiment.
        computation: The result of `of_computations`, if it is known.
    """
    computation = computation or of_computations(experiment.process)
    return experiment.written_as({**experiment.settings, "computation": computation})


def of_data(dataset: FederatedDataset) -> dict[str, str]:
    """Returns fingerprints of a data set."""
    return {"data": dataset.fingerprint, "inputs": dataset.inputs_fingerprint}


def of_run(experiment: Experiment) -> dict[str, Any]:
    """Returns all that a run depends on as JSON values."""
    process, options = experiment.process, vars(experiment.evaluation)
    quantities = process.evaluated_model.task.quantities
    chosen = {k: v for k, v in options.items() if changes_of(f"evaluation.{k}") == NUMBERS}
    return {
        **of_data(experiment.members),
        **of_computations(process),
        "noise_multiplier": process.algorithm.noise_multiplier,
        "clients_per_round": experiment.cohort_size,
        "participation": described(experiment.participation),
        "quantities": {name: it._asdict() for name, it in quantities.items()},
        "evaluate": described(chosen),
    }


def changes(
    before: Mapping[str, Any], now: Mapping[str, Any], *, are_versions_equal: bool
) -> list[str]:
    """Lists what differs between two identities, as text.

    Args:
        before: The identity of a run.
        now: The present identity; keys that it lacks are not compared.
        are_versions_equal: Whether both are of the same versions of software. If not, fingerprints
            of computations are not compared.
    """
    then, now = flatten({key: before.get(key) for key in now}, "."), flatten(now, ".")
    return [
        f"{DESCRIPTIONS.get(key, key)} was {then.get(key)}, now it is {now.get(key)}"
        for key in dict.fromkeys([*now, *then])
        if not _is_same(key, then.get(key), now.get(key))
        and (are_versions_equal or key not in COMPUTATIONS)
    ]


def _is_same(key, before, now) -> bool:
    # Noise that was computed from an epsilon may differ by rounding on another machine.
    if key == "noise_multiplier" and before and now:
        return math.isclose(before, now, rel_tol=1e-6)
    return repr(before) == repr(now)  # NaN is not equal to itself
