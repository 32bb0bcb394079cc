"""Personalized federated learning on TensorFlow Federated.

This package offers the names that most programs need. Its subpackages (`tff_pfl.templates`,
`tff_pfl.local`, `tff_pfl.models`, ...) offer the rest:

    import tff_pfl

    model = tff_pfl.from_keras(network, input_shape=(28, 28, 1))
    local = tff_pfl.LocalTraining(tff.learning.optimizers.build_sgdm(0.1), epochs=5)
    algorithm = tff_pfl.make("ditto", model, local, lambda_=0.5)
    process = tff_pfl.compose(algorithm, examples_type)

Each name is imported when it is first used, so that `prepare_process` can run before TensorFlow is
imported.
"""

from tff_pfl.lazy import offer

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "algorithms": ("ALGORITHMS", "build", "hyperparameters", "idle_where", "make"),
        "analysis": ("Comparison", "compare"),
        "arguments.extension": ("extends",),
        "arguments.ranges": ("takes",),
        "attacks": ("ATTACKS", "scaled_uploads"),
        "clients": (
            "AVAILABILITIES",
            "ClientStateStore",
            "CohortDataSource",
            "Ladder",
            "Participation",
            "SELECTORS",
        ),
        "config": ("default_config", "run_program"),
        "compression": ("COMPRESSORS", "compressed"),
        "data": (
            "FederatedDataset",
            "LabelledImages",
            "PARTITIONERS",
            "Partition",
            "federate",
        ),
        "datasets": ("DATASETS", "load"),
        "deployment": ("compose_stateless_view", "compose_with_sequence_data"),
        "evaluation": ("Evaluation", "MetricName", "fine_tuned", "locally_trained"),
        "experiment": ("EarlyStop", "Experiment", "NewClients", "Run", "RunDirectory", "train"),
        "local": (
            "AUGMENTATIONS",
            "Batch",
            "ClientContext",
            "Examples",
            "LocalTraining",
            "OPTIMIZERS",
            "SCHEDULES",
            "examples_type",
            "scan_batches",
            "trees",
        ),
        "models": (
            "MODELS",
            "Mean",
            "Metric",
            "Model",
            "ModelSaver",
            "TASKS",
            "Task",
            "Weights",
            "from_keras",
            "from_tff",
            "keras_metrics",
            "partition",
        ),
        "runtime": ("set_cpp_context", "set_graph_context"),
        "runtime.startup": ("prepare_process",),
        "templates": (
            "AGGREGATORS",
            "Algorithm",
            "Client",
            "ClientOutput",
            "Exchange",
            "Message",
            "Personalization",
            "PersonalizedProcess",
            "averaging",
            "compose",
            "last_own_model",
            "weighing",
            "with_aggregator",
        ),
    },
)
