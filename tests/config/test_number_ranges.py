"""Tests that every number of a config has a range, which is checked before the run is built."""

import math
import re

import ml_collections
import numpy as np
import pytest

from tff_pfl.config import ConfigError, check_config, complete, default_config, number_ranges
from tff_pfl.config.options import CHOICES, value_of

NAN, INF = math.nan, math.inf
# A right value and wrong values of each kind of number.
KINDS = {
    "count": (1, (0, -3, True, 1.5, NAN, INF)),
    "count or none": (0, (-1, True, 0.5, NAN)),
    "least 0": (0.0, (-0.1, NAN, INF)),
    "above 0": (1e-6, (0.0, -1.0, NAN, INF)),
    "above 0 or inf": (INF, (0.0, -1.0, NAN)),
    "least 1": (1.0, (0.9, NAN, INF)),
    "unit": (1.0, (-0.1, 1.1, NAN)),
    "inside unit": (0.5, (0.0, 1.0, NAN)),
    "below 1": (0.9, (-0.1, 1.0, NAN)),
    "bits": (24, (7, 25, NAN, True)),
    "ids": ((0, 1), ((-1,), (0.5,), (NAN,), (True,), 0)),
    "units": ((0.0, 1.0), ((0.5, 1.5), (-0.5,), (NAN,), (True,), 0.5)),
    "units of classes": ((1.0,), ((1.5,), (-0.5,), (NAN,), (True,), (), 0.5)),
    "least 0 of classes": ((2.0,), ((-0.5,), (NAN,), (INF,), (True,), (), 0.5)),
    "fractions": ((5, 0, 1), ((0, 0, 1), (1, -1, 1), (1, 1), (NAN, 0, 1), (1, INF, 1), 0.5)),
}
NUMBERS = {
    "count": "rounds clients_per_round checkpoint_every data.num_clients local.batch_size "
    "local.steps model.segments evaluation.clients_per_call data.classes_per_client.classes",
    "count or none": "seed data.num_validation data.dirichlet.min_examples local.epochs "
    "evaluation.every evaluation.clients evaluation.fine_tune_epochs new_clients.number "
    "new_clients.fine_tune_epochs early_stop.patience adapters.rank",
    "least 0": "local.learning_rate local.weight_decay evaluation.fine_tune_learning_rate "
    "server.learning_rate data.dirichlet.max_seconds early_stop.least_gain "
    "privacy.noise_multiplier participation.client_spread participation.round_spread",
    "least 1": "data.imbalance participation.over_selection",
    "above 0": "data.dirichlet.alpha local.learning_rate_decay privacy.epsilon privacy.clip_norm "
    "participation.deadline adapters.alpha",
    "inside unit": "privacy.delta",
    "bits": "privacy.bits",
    "above 0 or inf": "local.clip_norm",
    "below 1": "local.momentum server.momentum",
    "units of classes": "participation.dropout",
    "least 0 of classes": "participation.class_shares participation.median_seconds",
    "fractions": "data.fractions",
    "unit": "attack.fraction evaluation.late_share adapters.own_share",
    "units": "evaluation.synthetic",
    "ids": "attack.client_ids",
}
# The options whose tuples have names instead of numbers, and the label that may be any number.
NAMES = {
    *("branched_layers", "classes", "head_layers", "personal_layers", "shared_layers"),
    *("simplex_layers", "new_layers"),
}
LABEL = "task.padding_id"


def numbers(config, prefix=""):
    """Yields the keys of a config whose values are numbers or tuples of numbers."""
    for name in config:
        kind, value = config.get_type(name), config[name]
        if isinstance(value, ml_collections.ConfigDict):
            yield from numbers(value, f"{prefix}{name}.")
        elif kind in (int, float) or (kind is tuple and name not in NAMES):
            yield f"{prefix}{name}"


def check(key, value):
    config = default_config()
    section, _, name = key.rpartition(".")
    if section == "privacy" and name != "epsilon":
        config.privacy.noise_multiplier = 1.0  # switches privacy on
    if key == "privacy.bits":
        config.privacy.update(mechanism="distributed", clipping="fixed")
    if key.startswith("adapters.") and name != "rank":
        config.adapters.rank = 1
    if section == "participation":
        config.participation.median_seconds = (1.0,)  # the others need a median
    with config.ignore_type(), config.unlocked():
        value_of(config, section)[name] = value
    check_config(config)


@pytest.mark.thorough
def test_numbers_out_of_range_are_refused():
    for kind, keys in NUMBERS.items():
        right, wrong = KINDS[kind]
        for key in keys.split():
            check(key, right)
            for value in wrong:
                message = rf"config\.{re.escape(key)} must be .*, got {re.escape(repr(value))}\."
                with pytest.raises(ConfigError, match=message):
                    check(key, value)


def test_none_is_refused_for_required_numbers():
    for key in ("rounds", "local.momentum", "evaluation.every", "local.learning_rate_decay"):
        with pytest.raises(ConfigError, match=rf"config\.{re.escape(key)} must be .*, got None\."):
            check(key, None)


@pytest.mark.thorough
def test_each_number_has_a_range_that_contains_its_default():
    for key, name in ((choice.key, name) for choice in CHOICES for name in choice.registry):
        config = default_config()
        complete(config, {key: name})
        for not_of_numbers in ("imports", "import_path"):
            del config[not_of_numbers]
        del config.evaluation["further_models"], config.adapters["layers"]
        del config.adapters["trained"]
        ranges = number_ranges(config)
        assert set(numbers(config)) - {LABEL} <= ranges.keys(), name
        for key, range_ in ranges.items():
            value = value_of(config, key)
            assert value is None or range_.contains(value), (name, key)
            assert not range_.contains("1"), (name, key)


def test_options_of_choices_are_checked():
    for key, value in (
        ("algorithm.lambda_", -1.0),
        ("aggregator.options.num_attackers", -1),
        ("local.options.beta_1", 1.0),
    ):
        config = default_config("ditto")
        complete(config, {"aggregator.name": "krum", "local.optimizer": "adam"})
        check_config(config)
        section, _, name = key.rpartition(".")
        value_of(config, section)[name] = value
        with pytest.raises(ConfigError, match=rf"config\.{re.escape(key)} must be .* got {value}"):
            check_config(config)


def test_numpy_numbers_become_python_numbers():
    config = default_config("ditto")
    config.rounds = np.int64(3)
    config.algorithm.lambda_ = np.float32(0.5)
    config.data.dirichlet.update(alpha=np.float64(0.2))
    config.local.steps = np.int32(2)
    check_config(config)
    assert [type(value) for value in (config.rounds, config.local.steps)] == [int, int]
    assert (config.algorithm.lambda_, config.data.dirichlet.alpha) == (0.5, 0.2)
