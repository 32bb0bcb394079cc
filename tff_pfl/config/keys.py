"""Lists all keys of a config and explains them, except the options of choices by name.

A config is one `ml_collections.ConfigDict` that describes a run completely. A file in `configs/`
returns a copy of `default_config` with its own values. Flags such as `--config.rounds=50` override
single values.
"""

import ml_collections
import numpy as np
from ml_collections import config_dict

from tff_pfl.arguments.ranges import above, at_least, between, inside, up_to, whole

OWN_NUMBERS = {
    "seed": whole(0, 2**63 - 1),
    "rounds": whole(1),
    "clients_per_round": whole(1),
    "checkpoint_every": whole(1),
    "local.learning_rate": at_least(0),
    "local.momentum": up_to(0, 1),
    "server.learning_rate": at_least(0),
    "server.momentum": up_to(0, 1),
    "evaluation.every": whole(0),
    "evaluation.fine_tune_epochs": whole(0),
    "evaluation.fine_tune_learning_rate": at_least(0),
    "early_stop.patience": whole(0),
    "early_stop.least_gain": at_least(0),
    "privacy.epsilon": above(0),
    "privacy.noise_multiplier": at_least(0),
    "privacy.delta": inside(0, 1),
    "privacy.clip_norm": above(0),
    "privacy.bits": whole(8, 24),
    "new_clients.number": whole(0),
    "new_clients.fine_tune_epochs": whole(0),
    "attack.fraction": between(0, 1),
}
"""The ranges of numbers whose key is not an argument of a function with `ranges.takes`."""


class Config(ml_collections.ConfigDict):
    """A `ConfigDict` that converts NumPy's numbers to Python's."""

    def __setitem__(self, key, value):
        """Sets the value of a key."""
        super().__setitem__(key, value.item() if isinstance(value, np.generic) else value)


def own_keys() -> Config:
    """Returns all keys with their defaults, without the options of choices by name."""
    config = Config()
    config.imports = ()  # modules that register names, such as "my_package.methods"
    config.import_path = ()  # folders to search for them first; programs add the config's folder
    config.seed = 0  # the seed of the partition, initial weights, cohorts and batches
    config.rounds = 20
    config.clients_per_round = 6

    config.data = Config()
    config.data.name = "digits"  # one of tff_pfl.datasets.DATASETS
    config.data.data_dir = ""  # folder of TFDS data sets; "": TFDS_DATA_DIR or TFDS's default
    config.data.num_clients = 25  # not used by the natural partitioner
    config.data.partitioner = "dirichlet"  # one of tff_pfl.data.PARTITIONERS; its options are in
    # config.data.NAME, such as config.data.dirichlet.alpha
    config.data.merge = True  # pool the original train and test splits before partitioning
    config.data.fractions = (0.75, 0.0, 0.25)  # with merge: shares of train, validation, test
    config.data.num_validation = 0  # without merge: examples taken from the training split
    config.data.imbalance = 1.0  # examples of the first class over those of the last class
    config.data.imbalanced_test = True  # False: keep the whole test split; needs merge=False
    config.data.partition_file = ""  # a saved partition to use instead of a new one
    config.data.normalization = "unit"  # one of tff_pfl.datasets.NORMALIZATIONS

    config.model = Config()
    config.model.name = "mlp"  # one of tff_pfl.models.MODELS
    config.model.options = Config()  # options of the model
    config.model.segments = 1  # number of parts whose activations are computed again for gradients
    config.model.compute_type = "float32"  # type of layers, or "bfloat16"; weights are float32

    # .name is one of tff_pfl.TASKS, by default "classification"; its options are in the same
    # section.
    config.task = Config()  # the loss and the metrics

    config.local = Config()
    config.local.optimizer = "sgd"  # one of tff_pfl.local.OPTIMIZERS
    config.local.options = Config()  # options of the optimizer
    config.local.learning_rate = 0.1
    config.local.momentum = 0.0  # for optimizers with momentum, such as sgd
    config.local.weight_decay = 0.0  # this times the weights is added to the gradient
    config.local.clip_norm = config_dict.placeholder(float)  # largest gradient norm, before decay
    config.local.epochs = 5
    config.local.steps = config_dict.placeholder(int)  # replaces epochs if set
    config.local.batch_size = 50
    config.local.learning_rate_decay = 1.0  # factor per round
    # .name is one of tff_pfl.SCHEDULES, by default "constant"; its options are in the same section.
    config.local.schedule = Config()  # a further factor of the learning rate for each round
    config.local.warm_up_rounds = 0  # the first rounds, in which the learning rate rises
    # .name is one of tff_pfl.AUGMENTATIONS, or "" by default; its options are in the same section.
    config.local.augmentation = Config()  # of training images
    config.local.drop_remainder = False  # skip partial batches, except a client's only batch
    config.local.persist_optimizer_state = False  # clients keep it for their next round

    config.evaluation = Config()
    config.evaluation.every = 5  # rounds; the last round is always evaluated (0: only the last)
    config.evaluation.split = "test"  # the split to evaluate on; or "validation", for tuning
    config.evaluation.validation = False  # True: also evaluate on validation examples
    config.evaluation.late_share = 0.1  # share of the evaluations that are late, for late_mean
    config.evaluation.further_models = ()  # "locally_trained", "fine_tuned", or both
    config.evaluation.fine_tune_epochs = 0  # epochs before a client's own model is evaluated
    config.evaluation.fine_tune_learning_rate = config_dict.placeholder(float)  # constant over
    # rounds, also for new clients; None: the rate of local training in its last round
    config.evaluation.clients = 0  # number of clients to evaluate, drawn once; 0: all
    config.evaluation.clients_per_call = 25  # clients evaluated at a time; fewer need less memory
    config.evaluation.generalization = "never"  # also evaluate on other clients' examples: "never",
    # after the "last" round, or "always"
    config.evaluation.synthetic = (0.5,)  # with generalization: shares of others to add, for S-acc
    config.evaluation.subsample = False  # draw only as many examples of others as the client has

    config.participation = Config()  # tuples have one number, or one per device class
    config.participation.sampling = "fixed"  # or "poisson": each client is drawn independently
    config.participation.over_selection = 1.0  # selected clients over clients_per_round
    # .name is one of tff_pfl.AVAILABILITIES, by default "always"; its options are in the same
    # section.
    config.participation.availability = Config()  # the clients that can be selected
    # .name is one of tff_pfl.SELECTORS, by default "uniform"; its options are in the same section.
    config.participation.selector = Config()  # the choice among the available clients
    config.participation.class_shares = (1.0,)  # shares of the device classes; scaled to sum to 1
    config.participation.dropout = (0.0,)  # probability that a selected client never reports
    config.participation.median_seconds = (0.0,)  # until a client reports; 0: at once
    config.participation.client_spread = 0.0  # standard deviation of log(seconds) between clients
    config.participation.round_spread = 0.0  # the same between the rounds of a client
    config.participation.deadline = config_dict.placeholder(float)  # seconds; None: nobody is late

    config.early_stop = Config()  # based on validation examples, for any evaluation.split
    config.early_stop.patience = 0  # evaluations without improvement until the run ends; 0: never
    config.early_stop.least_gain = 0.0  # improvements are larger than this
    config.early_stop.metric = "personalized/accuracy"  # or "global/accuracy", or .../loss

    config.new_clients = Config()
    config.new_clients.number = 0  # the last clients do not train, but fine-tune at the end
    config.new_clients.fine_tune_epochs = 20
    config.new_clients.best_epoch = False  # also report the best of these epochs
    config.new_clients.evaluated = True  # False: they are held out, but not evaluated

    config.aggregator = Config()
    config.aggregator.name = ""  # one of tff_pfl.templates.AGGREGATORS; "": the algorithm's own
    config.aggregator.options = Config()  # options of the aggregator

    # Off if epsilon and noise_multiplier are None.
    config.privacy = Config()  # of clients, from anyone who sees the server
    config.privacy.epsilon = config_dict.placeholder(float)  # for all rounds; None: from noise
    config.privacy.noise_multiplier = config_dict.placeholder(float)  # None: from epsilon
    config.privacy.delta = config_dict.placeholder(float)  # None: num_clients ** -1.1
    config.privacy.mechanism = "central"  # the server adds noise; "distributed": clients do
    config.privacy.bits = 20  # of each uploaded number, with distributed noise
    config.privacy.clipping = "adaptive"  # of uploads; or "fixed"
    config.privacy.clip_norm = 0.1  # largest norm of an upload, at first if clipping is adaptive
    config.privacy.secure_sums = False  # sum uploads securely before the server adds noise

    config.server = Config()
    config.server.optimizer = ""  # one of tff_pfl.local.OPTIMIZERS; "": the step is the mean
    config.server.options = Config()  # options of the optimizer
    config.server.learning_rate = 1.0
    config.server.momentum = 0.0  # see config.local.momentum

    # .name is one of tff_pfl.ATTACKS, by default "scaled_uploads"; its options are in the same
    # section. The attackers are client_ids, or a drawn fraction of all clients; without both there
    # is no attack.
    config.attack = Config()

    # .name is one of tff_pfl.COMPRESSORS, or "" by default; its options are in the same section.
    # With error_feedback, clients add the compression error to their next upload.
    config.compression = Config()  # of uploads

    config.checkpoint_every = 1  # rounds between checkpoints

    # .name is one of tff_pfl.ALGORITHMS; its options are in the same section.
    config.algorithm = Config()
    return config
