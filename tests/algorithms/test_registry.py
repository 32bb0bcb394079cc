"""Tests the registry of algorithms."""

import functools
import re

import pytest

from tests.federation import local_sgd, tiny_model
from tests.marks import together
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.algorithms.fedavg import fedavg
from tff_pfl.algorithms.registry import local_idle_where, make
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.arguments.ranges import RangeError
from tff_pfl.arguments.recipes import recipe_of
from tff_pfl.templates import Federation
from tff_pfl.tracing.errors import TemplateError

FEDERATION = {"num_clients": 8, "clients_per_round": 2}


def test_idle_local_training_passes_through_variants():
    assert local_idle_where("fedpg") == local_idle_where("s_fedpg") == ("gradient", "full")
    assert local_idle_where("ifca") == ("averaging", "gradients")
    assert local_idle_where("fedavg") is None


@pytest.mark.parametrize(
    ("name", "options", "warning"),
    [
        ("apfl", {"alpha_update": "round"}, "alpha_update='round' of apfl .* with adaptive=False"),
        ("apfl", {"alpha_update": "round", "adaptive": True}, None),
        ("per_fedavg", {"delta": 0.1}, "delta=0.1 of per_fedavg .* with variant='first_order'"),
        ("fedrod", {"hypernetwork_hidden": (4,)}, r"hidden=\(4,\) .* with personal_head='linear'"),
        ("fedrod", {"hypernetwork_hidden": [16]}, None),
        ("heur_fedamp", {"distance_scale": "median"}, "distance_scale='median' of fedamp"),
        ("fedpg", {"protect_absent": True, "personalize": False}, "protect_absent=True of fedpg"),
        ("s_fedpg", {"memory_size": 5, "absent_memory": False}, "memory_size=5 of fedpg"),
    ],
)
def test_option_without_effect_logs_a_warning(caplog, name, options, warning):
    with caplog.at_level("WARNING", logger="absl"):
        make(name, tiny_model(), local_sgd(), **FEDERATION, **options)
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == (warning is not None), messages
    if warning:
        assert re.search(warning, messages[0])


def test_make_records_the_federation_that_an_algorithm_computes_with():
    makes = functools.partial(make, model=tiny_model(), local=local_sgd(), **FEDERATION)
    assert makes("scaffold").made_for == Federation(num_clients=8)
    assert makes("pgfed", largest_cohort=4).made_for == Federation(8, 2, 4)
    assert makes("ditto", largest_cohort=4).made_for == Federation()


def test_make_takes_a_function():
    def own(model, local, *, num_clients, share: float = 0.5):
        seen.append((num_clients, share))
        return fedavg(model, local)

    seen = []
    made = make(own, tiny_model(), local_sgd(), **FEDERATION, share=0.25)
    assert seen == [(8, 0.25)] and made.name == "own" and recipe_of(made) is None
    assert made.made_for == Federation(num_clients=8)
    assert made.evaluated_model is tiny_model() and made.made_of.options == {"share": 0.25}
    with pytest.raises(UnknownNameError, match="option of algorithm 'own' 'shar'"):
        make(own, tiny_model(), local_sgd(), num_clients=8, shar=0.5)
    with pytest.raises(TypeError, match="needs num_clients"):
        make(own, tiny_model(), local_sgd())


@pytest.mark.parametrize("name", ["ditto", "s_fedpg"])
def test_function_of_a_name_makes_what_the_name_makes(name):
    by_name, by_function = (
        make(method, tiny_model(), local_sgd()) for method in (name, ALGORITHMS[name])
    )
    assert repr(by_function) == repr(by_name)
    assert recipe_of(by_function) == recipe_of(by_name)


def test_make_refuses_a_function_that_returns_no_algorithm():
    ALGORITHMS.register("own")(lambda model, local: None)
    with pytest.raises(TemplateError, match="'own' must return a tff_pfl.Algorithm, got None"):
        make("own", tiny_model(), local_sgd())


@together("wrong", [0, 2.5])
@together(("name", "key"), [("scaffold", "num_clients"), ("pgfed", "clients_per_round")])
def test_make_requires_a_whole_number_of_clients(name, key, wrong):
    with pytest.raises(RangeError, match=f"^{key}"):
        make(name, tiny_model(), local_sgd(), **FEDERATION | {key: wrong})
