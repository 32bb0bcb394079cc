"""Personalized federated learning on TensorFlow Federated.

This package offers the names that most programs need. Its subpackages (`tff_pfl.templates`,
`tff_pfl.local`, `tff_pfl.models`, ...) offer the rest:

    import tff_pfl

    model = tff_pfl.from_keras(network, input_shape=(28, 28, 1))
    local = tff_pfl.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), epochs=5)
    algorithm = tff_pfl.make("ditto", model, local, lambda_=0.5)
    process = tff_pfl.compose(algorithm, examples_type)

Each name is imported when it is first used. TensorFlow is silent if this package is imported before
it.
"""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer
from tff_pfl.runtime.startup import prepare_tensorflow

__version__ = "0.1.0"

prepare_tensorflow()

if TYPE_CHECKING:
    from tff_pfl.algorithms import ALGORITHMS as ALGORITHMS
    from tff_pfl.algorithms import hyperparameters as hyperparameters
    from tff_pfl.algorithms import idle_where as idle_where
    from tff_pfl.algorithms import make as make
    from tff_pfl.analysis import Comparison as Comparison
    from tff_pfl.arguments.extension import extends as extends
    from tff_pfl.arguments.ranges import takes as takes
    from tff_pfl.attacks import ATTACKS as ATTACKS
    from tff_pfl.attacks import scaled_uploads as scaled_uploads
    from tff_pfl.clients import AVAILABILITIES as AVAILABILITIES
    from tff_pfl.clients import SELECTORS as SELECTORS
    from tff_pfl.clients import ClientStateStore as ClientStateStore
    from tff_pfl.clients import CohortDataSource as CohortDataSource
    from tff_pfl.clients import Ladder as Ladder
    from tff_pfl.clients import Participation as Participation
    from tff_pfl.compression import COMPRESSORS as COMPRESSORS
    from tff_pfl.compression import compressed as compressed
    from tff_pfl.config import default_config as default_config
    from tff_pfl.config import run_program as run_program
    from tff_pfl.data import PARTITIONERS as PARTITIONERS
    from tff_pfl.data import FederatedDataset as FederatedDataset
    from tff_pfl.data import LabelledImages as LabelledImages
    from tff_pfl.data import Partition as Partition
    from tff_pfl.data import federate as federate
    from tff_pfl.datasets import DATASETS as DATASETS
    from tff_pfl.datasets import load as load
    from tff_pfl.deployment import compose_stateless_view as compose_stateless_view
    from tff_pfl.deployment import compose_with_sequence_data as compose_with_sequence_data
    from tff_pfl.evaluation import Evaluation as Evaluation
    from tff_pfl.evaluation import MetricName as MetricName
    from tff_pfl.evaluation import fine_tuned as fine_tuned
    from tff_pfl.evaluation import locally_trained as locally_trained
    from tff_pfl.experiment import EarlyStop as EarlyStop
    from tff_pfl.experiment import Experiment as Experiment
    from tff_pfl.experiment import NewClients as NewClients
    from tff_pfl.experiment import Run as Run
    from tff_pfl.experiment import RunDirectory as RunDirectory
    from tff_pfl.experiment import train as train
    from tff_pfl.local import AUGMENTATIONS as AUGMENTATIONS
    from tff_pfl.local import OPTIMIZERS as OPTIMIZERS
    from tff_pfl.local import SCHEDULES as SCHEDULES
    from tff_pfl.local import Batch as Batch
    from tff_pfl.local import ClientContext as ClientContext
    from tff_pfl.local import Examples as Examples
    from tff_pfl.local import LocalTraining as LocalTraining
    from tff_pfl.local import examples_type as examples_type
    from tff_pfl.local import scan_batches as scan_batches
    from tff_pfl.local import sum_over as sum_over
    from tff_pfl.local import trees as trees
    from tff_pfl.models import MODELS as MODELS
    from tff_pfl.models import TASKS as TASKS
    from tff_pfl.models import Mean as Mean
    from tff_pfl.models import Metric as Metric
    from tff_pfl.models import Model as Model
    from tff_pfl.models import ModelSaver as ModelSaver
    from tff_pfl.models import Task as Task
    from tff_pfl.models import Weights as Weights
    from tff_pfl.models import from_keras as from_keras
    from tff_pfl.models import from_tff as from_tff
    from tff_pfl.models import keras_metrics as keras_metrics
    from tff_pfl.models import layer_parts as layer_parts
    from tff_pfl.runtime import set_cpp_context as set_cpp_context
    from tff_pfl.runtime import set_graph_context as set_graph_context
    from tff_pfl.runtime.startup import prepare_process as prepare_process
    from tff_pfl.studies import compare as compare
    from tff_pfl.templates import AGGREGATORS as AGGREGATORS
    from tff_pfl.templates import Algorithm as Algorithm
    from tff_pfl.templates import Client as Client
    from tff_pfl.templates import ClientOutput as ClientOutput
    from tff_pfl.templates import Exchange as Exchange
    from tff_pfl.templates import Message as Message
    from tff_pfl.templates import Personalization as Personalization
    from tff_pfl.templates import PersonalizedProcess as PersonalizedProcess
    from tff_pfl.templates import averaging as averaging
    from tff_pfl.templates import compose as compose
    from tff_pfl.templates import last_own_model as last_own_model
    from tff_pfl.templates import weighing as weighing
    from tff_pfl.templates import with_aggregator as with_aggregator
else:
    __getattr__, __dir__, __all__ = offer(__name__)
