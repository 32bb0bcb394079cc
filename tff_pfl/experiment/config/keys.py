"""Lists all keys of a config and their meaning, without the options of what it chooses by name.

A config is one `ml_collections.ConfigDict` that describes a run completely. A file in `configs/`
returns a copy of `default_config` with its own values; flags such as `--config.rounds=50` override
single ones.
"""

import ml_collections
import numpy as np
from ml_collections import config_dict

from tff_pfl.ranges import above, at_least, between, inside, up_to, whole

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
"""The ranges of numbers that no function takes under the name of their key."""


class Config(ml_collections.ConfigDict):
    """A `ConfigDict` in which NumPy's numbers are Python's."""

    def __setitem__(self, key, value):
        super().__setitem__(key, value.item() if isinstance(value, np.generic) else value)


def own_keys() -> Config:
    """Returns the keys with their defaults; sections of options are empty."""
    config = Config()
    config.imports = ()  # modules to import, which register names: "my_package.methods"
    config.import_path = ()  # folders to search for them first; programs add the config's own
    config.seed = 0  # of the partition, initial weights, cohorts and batches
    config.rounds = 20
    config.clients_per_round = 6

    config.data = Config()
    config.data.name = "digits"  # one of tff_pfl.data.DATASETS
    config.data.data_dir = ""  # of prepared TFDS data sets; "": TFDS_DATA_DIR, or TFDS's default
    config.data.num_clients = 25  # unused by the natural partitioner
    config.data.partitioner = "dirichlet"  # one of tff_pfl.data.PARTITIONERS; config.data.NAME has
    # the options of each, such as config.data.dirichlet.alpha
    config.data.merge = True  # pool the original train and test splits before partitioning
    config.data.fractions = (0.75, 0.0, 0.25)  # with merge: train, validation and test share
    config.data.num_validation = 0  # without merge: examples to take from the training split
    config.data.imbalance = 1.0  # number of examples, first class over last class
    config.data.imbalanced_test = True  # False: the test split stays whole; needs merge=False
    config.data.partition_file = ""  # a saved partition to use instead of making one
    config.data.normalization = "unit"  # one of tff_pfl.data.NORMALIZATIONS

    config.model = Config()
    config.model.name = "mlp"  # one of tff_pfl.models.MODELS
    config.model.options = Config()  # options of the model
    config.model.segments = 1  # parts whose activations are computed again for gradients
    config.model.compute_type = "float32"  # or "bfloat16": type of layers; weights are float32

    config.local = Config()
    config.local.optimizer = "sgd"  # one of tff_pfl.local.OPTIMIZERS
    config.local.options = Config()  # options of the optimizer
    config.local.learning_rate = 0.1
    config.local.momentum = 0.0  # of an optimizer that has momentum, such as sgd
    config.local.weight_decay = 0.0  # times the weights, added to the gradient
    config.local.clip_norm = config_dict.placeholder(float)  # largest gradient norm, without decay
    config.local.epochs = 5
    config.local.steps = config_dict.placeholder(int)  # replaces epochs, if set
    config.local.batch_size = 50
    config.local.learning_rate_decay = 1.0  # factor per round
    config.local.schedule = Config()  # a further factor for each round: .name,
    # one of tff_pfl.SCHEDULES, by default "constant", with its options beside it
    config.local.warm_up_rounds = 0  # first rounds, in which the learning rate rises
    config.local.augmentation = Config()  # of training images: .name, one of
    # tff_pfl.AUGMENTATIONS, by default "" for none, with its options beside it
    config.local.drop_remainder = False  # leave out partial batches, but not a client's only one
    config.local.persist_optimizer_state = False  # a client keeps it for its next round

    config.evaluation = Config()
    config.evaluation.every = 5  # rounds; the last round is always evaluated; 0: only that one
    config.evaluation.split = "test"  # or "validation", for tuning
    config.evaluation.validation = False  # on validation examples, too, where the split is "test"
    config.evaluation.late_share = 0.1  # share of evaluations, the last ones, for late_mean
    config.evaluation.further_models = ()  # "locally_trained", "fine_tuned", or both
    config.evaluation.fine_tune_epochs = 0  # before a client's own model is evaluated
    config.evaluation.fine_tune_learning_rate = config_dict.placeholder(float)  # the same after
    # every round, and for new clients; None: that of local training in its last round
    config.evaluation.clients = 0  # size of a sample of clients, drawn once; 0: all
    config.evaluation.clients_per_call = 25  # clients to evaluate at a time; bounds memory
    config.evaluation.generalization = "never"  # on other clients' examples, too: "never", after
    # the "last" round, or "always"
    config.evaluation.synthetic = (0.5,)  # then, shares of the other clients to add, for S-acc
    config.evaluation.subsample = False  # draw as many examples of others as the client has

    config.participation = Config()  # tuples: a number per device class, or one
    config.participation.sampling = "fixed"  # or "poisson": each client is drawn by itself
    config.participation.over_selection = 1.0  # clients selected, over clients_per_round
    config.participation.availability = Config()  # who can be selected: .name,
    # one of tff_pfl.AVAILABILITIES, by default "always", with its options beside it
    config.participation.class_shares = (1.0,)  # of the device classes; scaled to sum to 1
    config.participation.dropout = (0.0,)  # the probability that a selected client never reports
    config.participation.median_seconds = (0.0,)  # until a client reports; 0: nothing takes time
    config.participation.client_spread = 0.0  # of the logarithm of seconds between clients
    config.participation.round_spread = 0.0  # the same between the rounds of one client
    config.participation.deadline = config_dict.placeholder(float)  # seconds; None: none is late

    config.early_stop = Config()  # on validation examples, whatever the split
    config.early_stop.patience = 0  # evaluations without an improvement before it ends; 0: never
    config.early_stop.least_gain = 0.0  # an improvement is larger than this
    config.early_stop.metric = "personalized/accuracy"  # or global/...; or .../loss

    config.new_clients = Config()
    config.new_clients.number = 0  # these last clients do not train, but fine-tune at the end
    config.new_clients.fine_tune_epochs = 20
    config.new_clients.best_epoch = False  # report the best of these epochs, too
    config.new_clients.evaluated = True  # False: they are only held out

    config.aggregator = Config()
    config.aggregator.name = ""  # one of tff_pfl.templates.AGGREGATORS; "": the algorithm's own
    config.aggregator.options = Config()  # options of the aggregator

    config.privacy = Config()  # of whole clients, from whoever sees the server
    config.privacy.epsilon = config_dict.placeholder(float)  # of all rounds; both None: no privacy
    config.privacy.noise_multiplier = config_dict.placeholder(float)  # replaces epsilon
    config.privacy.delta = config_dict.placeholder(float)  # None: num_clients ** -1.1
    config.privacy.mechanism = "central"  # the server adds noise; or "distributed": clients do
    config.privacy.bits = 20  # of each number that a client sends, with distributed noise
    config.privacy.clipping = "adaptive"  # of uploads; or "fixed"
    config.privacy.clip_norm = 0.1  # largest norm of an upload; adaptive clipping starts there
    config.privacy.secure_sums = False  # sum uploads securely before the server adds noise

    config.server = Config()
    config.server.optimizer = ""  # one of tff_pfl.local.OPTIMIZERS; "": the mean is the step
    config.server.options = Config()  # options of the optimizer
    config.server.learning_rate = 1.0
    config.server.momentum = 0.0  # as config.local.momentum

    config.attack = Config()  # .name, one of tff_pfl.ATTACKS, by default
    # "scaled_uploads", with its options beside it; client_ids attack, or a fraction of all clients,
    # which is drawn; without both, nobody does

    config.compression = Config()  # of uploads: .name, one of
    # tff_pfl.COMPRESSORS, by default "" for none, with its options beside it, and error_feedback:
    # whether clients add what was lost to their next upload

    config.checkpoint_every = 1  # rounds

    config.paper = Config()  # numbers of the paper, for readers only

    config.algorithm = Config()  # .name, one of tff_pfl.ALGORITHMS, with its
    # options beside it
    return config
