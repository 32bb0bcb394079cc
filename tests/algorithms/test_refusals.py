"""Tests options that methods refuse; `tests/config` tests the ranges of numbers."""

import pytest

from tests.federation import local_sgd, tiny_model
from tests.marks import together
from tff_pfl.algorithms import ALGORITHMS, hyperparameters, make
from tff_pfl.arguments.names import UnknownNameError

FEDERATION = {"num_clients": 4, "clients_per_round": 2}
# Variants and extensions, which inherit their options.
DERIVED = {"fedbn", "fedprox", "fedsam", "heur_fedamp", "pfedhn_pc", "pgfed_ce", "pgfedmo"}
METHODS = sorted(ALGORITHMS.keys() - DERIVED - {"pgfedmo_ce", "plgu_ghn", "s_fedpg"})
CHOICES = {
    name: [option for option, default in hyperparameters(name).items() if isinstance(default, str)]
    for name in METHODS
}
ALL_LAYERS = ("dense1", "head")
LAYERS = [
    ("fedas", "personal_layers"),
    ("fedbabu", "head_layers"),
    ("fedper", "personal_layers"),
    ("fedrep", "personal_layers"),
    ("floco", "simplex_layers"),
    ("lg_fedavg", "shared_layers"),
    ("pfedhn", "personal_layers"),
    ("pfedmb", "branched_layers"),
    ("plgu_grep", "personal_layers"),
]


def made(name, rate=0.5, **options):
    return make(name, tiny_model(), local_sgd(rate), **FEDERATION, **options)


@together("name", [name for name in METHODS if CHOICES[name]])
def test_unknown_choice_is_refused(name):
    for option in CHOICES[name]:
        with pytest.raises(UnknownNameError, match=f"{option} .*'nonsense'"):
            made(name, rate=0.05, **{option: "nonsense"})


@together(("name", "option"), LAYERS)
def test_unknown_layer_is_refused(name, option):
    with pytest.raises(UnknownNameError, match="'hed'"):
        made(name, **{option: ("hed",)})


@together(
    ("name", "options", "message"),
    [
        ("apple", {"num_downloads": 4}, "num_downloads must be below 4, .* got 4"),
        ("fedala", {"num_mixed_layers": 3}, "num_mixed_layers must be in 0 to 2, got 3"),
        ("fedbn", {}, "^fedbn keeps .* model 'mlp' has none"),
        ("fedfomo", {"num_models": 5}, "num_models must be in 1 to 4, .*, got 5"),
        ("ifca", {"min_share": 0.51}, "min_share must be at most 1 / num_clusters = 0.5"),
        ("ifca", {"fixed_clusters": (0, 1, 0, 1), "min_share": 0.1}, "^min_share=0.1 has no use"),
        ("ifca", {"fixed_clusters": (0, 1)}, r"0 to 1, for each of 4 clients, got \(0, 1\)"),
        ("ifca", {"fixed_clusters": (0, 1, 2, 0)}, r"got \(0, 1, 2, 0\)"),
        ("pfedhn", {"personal_layers": ALL_LAYERS}, "personal_layers has all layers of 'mlp'"),
        ("pfedhn", {"embeddings": "one_hot", "embedding_dim": 3}, "embedding_dim must be 4"),
        ("pfedme", {"lambda_": 4.0}, "The learning rate 0.5 times lambda_=4 is 2"),
        (
            "pfedme",
            {"rate": 0.1, "lambda_": 4.0, "personal_learning_rate": 0.5},
            "personal_learning_rate 0.5 times lambda_=4 is 2",
        ),
        ("plgu_grep", {"personal_layers": ALL_LAYERS}, "personal_layers has all layers of 'mlp'"),
        ("plgu_lf", {"num_personal_layers": 3}, "in 0 to 2, the number of layers of 'mlp', got 3"),
    ],
)
def test_option_that_does_not_fit_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        made(name, **options)
