"""Every number of every config has a range, which is checked before anything is built."""

import math
import re

import ml_collections
import numpy as np
import pytest

from tests.marks import slow
from tff_pfl import algorithms, models
from tff_pfl.attacks import ATTACKS
from tff_pfl.clients import AVAILABILITIES
from tff_pfl.compression import COMPRESSORS
from tff_pfl.experiment import ConfigError, check_config, default_config
from tff_pfl.experiment.config import complete, number_ranges
from tff_pfl.experiment.config.options import value_of
from tff_pfl.local import OPTIMIZERS
from tff_pfl.templates import AGGREGATORS

NAN, INF = math.nan, math.inf
# By kind: a value that is right, others that are not. (A config makes 1.0 of `True` itself, where
# it has floats.)
KINDS = {
    "count": (1, (0, -3, True, 1.5, NAN, INF)),
    "count or none": (0, (-1, True, 0.5, NAN)),
    "least 0": (0.0, (-0.1, NAN, INF)),
    "above 0": (1e-6, (0.0, -1.0, NAN, INF)),
    "above 0 or inf": (INF, (0.0, -1.0, NAN)),
    "above 1 or inf": (INF, (1.0, NAN)),
    "least 0 or inf": (INF, (-0.1, NAN)),
    "least 1 or inf": (INF, (0.5, NAN)),
    "least 1": (1.0, (0.9, NAN, INF)),
    "unit": (1.0, (-0.1, 1.1, NAN)),
    "inside unit": (0.5, (0.0, 1.0, NAN)),
    "below 1": (0.9, (-0.1, 1.0, NAN)),
    "below half": (0.49, (-0.1, 0.5, NAN)),
    "depth": (16, (9, -4, NAN, True)),
    "bits": (22, (0, 23, NAN, True)),
    "bits of an entry": (16, (0, 17, NAN, True)),
    "bits of a sum": (24, (7, 25, NAN, True)),
    "any": (NAN, ("1", (1.0,))),
    "counts": ((1, 2), ((0,), (2, -1), (1.5,), (True,), 3, "12")),
    "ids": ((0, 1), ((-1,), (0.5,), (NAN,), (True,), 0)),
    "units": ((0.0, 1.0), ((0.5, 1.5), (-0.5,), (NAN,), (True,), 0.5)),
    "units of classes": ((1.0,), ((1.5,), (-0.5,), (NAN,), (True,), (), 0.5)),
    "least 0 of classes": ((2.0,), ((-0.5,), (NAN,), (INF,), (True,), (), 0.5)),
    "fractions": ((5, 0, 1), ((0, 0, 1), (1, -1, 1), (1, 1), (NAN, 0, 1), (1, INF, 1), 0.5)),
}
COMMON = {
    "count": "rounds clients_per_round checkpoint_every data.num_clients local.batch_size "
    "local.steps model.segments evaluation.clients_per_call data.classes_per_client.classes",
    "count or none": "seed data.num_validation data.dirichlet.min_examples local.epochs "
    "evaluation.every evaluation.clients evaluation.fine_tune_epochs new_clients.number "
    "new_clients.fine_tune_epochs early_stop.patience",
    "least 0": "local.learning_rate local.weight_decay evaluation.fine_tune_learning_rate "
    "server.learning_rate data.dirichlet.max_seconds early_stop.least_gain "
    "privacy.noise_multiplier",
    "least 1": "data.imbalance participation.over_selection",
    "above 0": "data.dirichlet.alpha local.learning_rate_decay privacy.epsilon privacy.clip_norm",
    "inside unit": "privacy.delta",
    "bits of a sum": "privacy.bits",
    "above 0 or inf": "local.clip_norm",
    "below 1": "local.momentum server.momentum",
    "units of classes": "participation.dropout",
    "least 0 of classes": "participation.class_shares participation.median_seconds",
    "fractions": "data.fractions",
    "unit": "attack.fraction evaluation.late_share",
    "units": "evaluation.synthetic",
    "ids": "attack.client_ids",
    "any": "attack.factor",
}
OF_ALGORITHMS = {
    "count": "alpha_decay_rounds num_models num_clusters hidden_width embedding_dim branches "
    "personal_steps memory_size max_trials head_steps body_steps max_passes",
    "count or none": "personal_epochs head_epochs body_epochs evaluation_head_epochs max_restarts "
    "hidden_layers alpha_epochs search_doublings num_personal_layers fine_tune_epochs "
    "adaptation_steps num_mixed_layers",
    "least 0": "lambda_ mu rho server_learning_rate exploration_decay server_weight_decay "
    "embedding_learning_rate alpha_learning_rate personal_learning_rate personal_weight_decay "
    "xi_scale fine_tune_learning_rate inner_learning_rate adaptation_learning_rate "
    "mixing_learning_rate head_learning_rate threshold",
    "above 0": "alpha sigma alpha_decay init_scale delta server_lr",
    "above 0 or inf": "server_clip_norm",
    "above 1 or inf": "norm_order",
    "least 1 or inf": "outlier_ratio",
    "unit": "self_weight exploration min_share gamma sufficient_decrease sample_share eps",
    "inside unit": "validation_share",
    "below 1": "server_momentum embedding_momentum",
    "counts": "hypernetwork_hidden",
    "ids": "fixed_clusters",
}
# APFL's `alpha` and SplitGP's `lambda_` are shares, pFedMe's `beta` is the length of a step, and
# PGFed's the weight of what was.
OF_ONE = {
    "apfl": {"unit": "alpha", "least 0": "alpha_learning_rate alpha_decay"},
    "pfedme": {"least 0": "beta"},
    "splitgp": {"unit": "lambda_", "least 0 or inf": "threshold"},
} | {name: {"unit": "beta"} for name in ("pgfed", "pgfed_ce", "pgfedmo", "pgfedmo_ce")}
OF_MODELS = {
    "counts": "hidden blocks",
    "count": "width stem_width groups widen",
    "depth": "depth",
    "least 0": "residual_scale",
    "below 1": "dropout_rate",
}
OF_OPTIMIZERS = {
    "least 0": "epsilon initial_preconditioner_value weight_decay",
    "below 1": "beta_1 beta_2 decay",
}
OF_AGGREGATORS = {
    "least 0": "noise_multiplier tolerance",
    "bits": "bits",
    "below half": "fraction",
    "above 0": "norm smoothing",
    "count": "num_selected",
    "count or none": "iterations num_attackers",
}
OF_AVAILABILITIES = {
    "unit": "least most",
    "above 0": "rounds_per_day",
    "units of classes": "probabilities",
}
OF_TIMES = {"least 0": "client_spread round_spread", "above 0": "deadline"}
OF_ATTACKS = {"least 0": "standard_deviation epsilon"}
OF_COMPRESSORS = {"unit": "share", "bits of an entry": "bits"}
# The tuples that are not of numbers.
NAMES_OF_LAYERS = {
    "also_personal",
    "branched_layers",
    "exit_layers",
    "head_layers",
    "personal_layers",
    "shared_layers",
}


def by_key(table, prefix=""):
    return {f"{prefix}{key}": kind for kind, keys in table.items() for key in keys.split()}


def numbers(config, prefix=""):
    """The keys of a config whose values are numbers, or several, by their types and defaults."""
    for name in config:
        kind, value = config.get_type(name), config[name]
        if isinstance(value, ml_collections.ConfigDict):
            yield from numbers(value, f"{prefix}{name}.")
        elif kind in (int, float) or (kind is tuple and name not in NAMES_OF_LAYERS):
            yield f"{prefix}{name}"


def config_of(
    algorithm="fedavg",
    model="mlp",
    optimizer="sgd",
    aggregator="",
    attack="scaled_uploads",
    availability="always",
    median_seconds=0.0,
    compressor="",
):
    config = default_config(algorithm)
    config.model.name = model
    config.local.optimizer = config.server.optimizer = optimizer
    config.aggregator.name = aggregator
    config.participation.median_seconds = (median_seconds,)
    names = {
        "attack.name": attack,
        "compression.name": compressor,
        "participation.availability.name": availability,
    }
    complete(config, names)
    return config


def assert_checked(key, kind, **choice):
    right, wrong = KINDS[kind]
    section, _, name = key.rpartition(".")

    def check(value):
        config = config_of(**choice)
        if key.startswith("privacy.") and name != "epsilon":
            config.privacy.noise_multiplier = 1.0  # without which there is no privacy
        if key == "privacy.bits":
            config.privacy.update(mechanism="distributed", clipping="fixed")
        with config.ignore_type(), config.unlocked():
            value_of(config, section)[name] = value
        check_config(config)

    check(right)
    for value in wrong:
        message = rf"config\.{re.escape(key)} must be .*, got {re.escape(repr(value))}\."
        with pytest.raises(ConfigError, match=message):
            check(value)


SECTIONS = {
    "algorithm": ("algorithm", OF_ALGORITHMS),
    "model": ("model.options", OF_MODELS),
    "optimizer": ("local.options", OF_OPTIMIZERS),
    "aggregator": ("aggregator.options", OF_AGGREGATORS),
    "attack": ("attack", OF_ATTACKS | {"any": "factor", "ids": "client_ids", "unit": "fraction"}),
    "availability": ("participation.availability", OF_AVAILABILITIES),
    "compressor": ("compression", OF_COMPRESSORS),
}
CHOSEN = [
    *({"algorithm": name} for name in algorithms.ALGORITHMS),
    *({"model": name} for name in models.MODELS),
    *({"optimizer": name} for name in OPTIMIZERS),
    *({"aggregator": name} for name in AGGREGATORS),
    *({"attack": name} for name in ATTACKS),
    *({"availability": name} for name in AVAILABILITIES),
    *({"compressor": name} for name in COMPRESSORS),
]


def test_numbers_of_all_configs():
    for key, kind in by_key(COMMON).items():
        assert_checked(key, kind)
    for key, kind in by_key(OF_TIMES, "participation.").items():
        assert_checked(key, kind, median_seconds=1.0)  # there are none without a median


@pytest.mark.parametrize("choice", [CHOSEN[0], *map(slow, CHOSEN[1:])], ids=str)
def test_numbers_of_what_is_chosen(choice):
    ((what, name),) = choice.items()
    section, table = SECTIONS[what]
    kinds = by_key(table) | by_key(OF_ONE.get(name, {}) if what == "algorithm" else {})
    for key in numbers(value_of(config_of(**choice), section)):
        assert_checked(f"{section}.{key}", kinds[key], **choice)


def test_none_where_no_number_may_be_left_out():
    for key in ("rounds", "local.momentum", "evaluation.every", "local.learning_rate_decay"):
        config = default_config()
        section, _, name = key.rpartition(".")
        value_of(config, section)[name] = None
        with pytest.raises(ConfigError, match=rf"config\.{re.escape(key)} must be .*, got None\."):
            check_config(config)


def test_no_number_is_without_a_range():
    for choice in CHOSEN:
        config = config_of(**choice)
        for not_of_numbers in ("paper", "imports", "import_path"):
            del config[not_of_numbers]
        del config.evaluation["further_models"]
        assert set(numbers(config)) == number_ranges(config).keys(), choice


def test_numpy_numbers_are_numbers():
    config = config_of("ditto")
    with config.ignore_type():
        config.algorithm.lambda_ = np.float32(0.5)
        config.local.epochs = np.int64(2)
    check_config(config)
