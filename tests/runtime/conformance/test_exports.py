"""Every export of TFF that makes computations has a case, or a reason why it has none."""

import operator
import re

import pytest
import tensorflow_federated as tff

from tests.runtime.conformance import (
    cases_aggregators,
    cases_analytics,
    cases_builders,
    cases_metrics,
    cases_simulation,
)
from tests.runtime.conformance.exports import exports
from tests.runtime.conformance.learning_tasks import RECONSTRUCTION_TASKS, TASKS

# By modules of TFF, the modules whose cases are named by their exports.
CASES = {
    "aggregators": [cases_aggregators],
    "learning": [cases_aggregators, cases_builders],
    "learning.algorithms": [cases_builders],
    "learning.optimizers": [cases_builders],
    "learning.metrics": [cases_metrics],
    "learning.models": [cases_builders],
    "learning.programs": [],
    "learning.templates": [],
    "analytics": [cases_analytics],
    "analytics.count_distinct": [cases_analytics],
    "analytics.data_processing": [cases_analytics],
    "analytics.differential_privacy": [],
    "analytics.heavy_hitters.iblt": [cases_analytics],
    "analytics.histogram_processing": [cases_analytics],
    "simulation": [cases_simulation],
    "simulation.datasets": [cases_simulation],
}

INTERFACE = "an interface"
CONTAINER = "a container"
IN_PYTHON = "makes and runs no computation"
IN_FED_AVG = "what `build_weighted_fed_avg` is made of, of a Keras model and a functional one"
IN_IBLT = "what `build_iblt_computation` is made of"
IN_CASES = "makes the models of the cases, which are Keras models and functional ones"
IN_A_PROGRAM = "a federated program, which calls a process; its contexts have tests of their own"
NEEDS_FILES = "reads or writes files, in Python"

REASONS = {
    "aggregators": {
        "UnweightedAggregationFactory": INTERFACE,
        "WeightedAggregationFactory": INTERFACE,
    },
    "learning.optimizers": {
        "Optimizer": INTERFACE,
        "build_adafactor": "see `REFUSED` of `cases_builders`",
        "check_weights_gradients_match": IN_PYTHON,
        "handle_indexed_slices_gradients": IN_PYTHON,
    },
    "learning.metrics": {
        "MetricsAggregatorType": INTERFACE,
        "create_keras_metric_finalizer": "finalizes in the cases of all others",
    },
    "learning.models": {
        "BatchOutput": CONTAINER,
        "FunctionalModel": INTERFACE,
        "ModelWeights": CONTAINER,
        "ReconstructionModel": IN_CASES,
        "VariableModel": INTERFACE,
        "from_keras_model": IN_CASES,
        "functional_model_from_keras": IN_CASES,
        "load": NEEDS_FILES,
        "load_functional_model": NEEDS_FILES,
        "save": NEEDS_FILES,
        "save_functional_model": NEEDS_FILES,
        "weights_type_from_model": IN_PYTHON,
    },
    "learning.programs": {
        "EvaluationManager": IN_A_PROGRAM,
        "ProgramState": CONTAINER,
        "extract_and_rewrap_metrics": IN_PYTHON,
        "train_model": IN_A_PROGRAM,
        "train_model_with_vizier": IN_A_PROGRAM,
    },
    "learning.templates": {
        "ClientResult": CONTAINER,
        "LearningAlgorithmState": CONTAINER,
        "LearningProcessOutput": CONTAINER,
        "ClientWorkProcess": IN_FED_AVG,
        "DistributionProcess": IN_FED_AVG,
        "FinalizerProcess": IN_FED_AVG,
        "LearningProcess": IN_FED_AVG,
        "build_apply_optimizer_finalizer": IN_FED_AVG,
        "build_broadcast_process": IN_FED_AVG,
        "build_functional_model_delta_client_work": IN_FED_AVG,
        "build_model_delta_client_work": IN_FED_AVG,
        "compose_learning_process": IN_FED_AVG,
        "reject_non_finite_update": IN_FED_AVG,
    },
    "analytics": {"HierarchicalHistogramDecoder": IN_PYTHON},
    "analytics.differential_privacy": {"analytic_gauss_stddev": IN_PYTHON},
    "analytics.heavy_hitters.iblt": {
        name: IN_IBLT
        for name in (
            "CharacterEncoding",
            "CoupledHyperEdgeHasher",
            "IbltDecoder",
            "IbltEncoder",
            "IbltTensorDecoder",
            "IbltTensorEncoder",
            "RandomHyperEdgeHasher",
            "create_chunker",
            "decode_iblt_tensor_tf",
            "decode_iblt_tf",
        )
    },
    "simulation": {
        "SequenceTypeNotAssignableError": IN_PYTHON,
        "SequenceTypeNotFoundError": IN_PYTHON,
        "build_uniform_sampling_fn": IN_PYTHON,
    },
    "simulation.datasets": {
        "ClientData": INTERFACE,
        "FilePerUserClientData": NEEDS_FILES,
        "SqlClientData": NEEDS_FILES,
        "build_dataset_mixture": IN_PYTHON,
        "build_single_label_dataset": IN_PYTHON,
        "build_synthethic_iid_datasets": IN_PYTHON,
        "load_and_parse_sql_client_data": NEEDS_FILES,
        "save_to_sql_client_data": NEEDS_FILES,
    },
}


@pytest.mark.parametrize("name", CASES)
def test_every_export_has_a_case_or_a_reason(name):
    module = operator.attrgetter(name)(tff)
    named = {
        part
        for cases in CASES[name]
        for case in cases.case
        for part in re.split("[-:.]", case.name)
    }
    exported, excused = exports(module), set(REASONS.get(name, ()))
    assert exported - named == excused


@pytest.mark.slow
@pytest.mark.parametrize(("builder", "optimizer"), cases_builders.REFUSED)
def test_tff_refuses_to_build(builder, optimizer):
    """Otherwise it belongs among the cases."""
    tasks = {
        **dict.fromkeys(cases_builders.BUILDERS, TASKS["one_output"]),
        **dict.fromkeys(cases_builders.RECONSTRUCTIONS, RECONSTRUCTION_TASKS["one_output"]),
    }
    for name in tasks if builder == "*" else [builder]:
        with pytest.raises((KeyError, TypeError)):
            cases_builders.run_of(name, optimizer, tasks[name])
