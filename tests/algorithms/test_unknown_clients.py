"""Tests client ids outside the federation that an algorithm was made for."""

import pytest

from tests.federation import (
    EXAMPLES_TYPE,
    eager,
    local_sgd,
    make_client,
    random_examples,
    tiny_model,
)
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.templates import compose

NUM_CLIENTS = 5
METHODS = [name for name in ALGORITHMS if "num_clients" in ALGORITHMS.parameters(name)]
OPTIONS = {"num_clients": NUM_CLIENTS, "clients_per_round": 2}
MESSAGE = r"(?s)made for num_clients=5: ids 0 to 4. Client ids:.*0,? {}\b"


def composed(name, **options):
    return compose(make(name, tiny_model(), local_sgd(), **OPTIONS, **options), EXAMPLES_TYPE)


def in_blocks(name, **options):
    return eager(name, tiny_model(), local_sgd(), **OPTIONS, **options)


def assert_refuses_unknown_clients(process, takes_new_clients):
    state = process.initialize()
    for client_id in (NUM_CLIENTS, -1):
        cohort = [make_client(process, i, random_examples(3)) for i in (0, client_id)]
        with pytest.raises(Exception, match=MESSAGE.format(client_id)):
            process.next(state, cohort)
        if takes_new_clients:
            assert len(process.personalize(state, cohort)) == 2
        else:
            with pytest.raises(Exception, match=MESSAGE.format(client_id)):
                process.personalize(state, cohort)
    known = [make_client(process, i, random_examples(3)) for i in (0, NUM_CLIENTS - 1)]
    assert process.next(state, known).state.round_num == 1


@pytest.mark.parametrize("name", ["scaffold", "pfedhn"])
def test_blocks_refuse_unknown_clients(name):
    # pFedHN's server has no embedding of an unknown client.
    assert_refuses_unknown_clients(in_blocks(name), takes_new_clients=name == "scaffold")


def test_process_refuses_unknown_clients():
    process = composed("pfedhn", hidden_width=2, hidden_layers=1)
    assert_refuses_unknown_clients(process, takes_new_clients=False)


def test_fixed_clusters_exclude_unknown_clients():
    process = in_blocks("ifca", fixed_clusters=(0, 1, 0, 1, 0))
    assert_refuses_unknown_clients(process, takes_new_clients=False)


def test_methods_for_any_federation_take_any_client():
    process = in_blocks("fedpg")
    cohort = [make_client(process, i, random_examples(3)) for i in (0, 10**9)]
    output = process.next(process.initialize(), cohort)
    assert output.metrics["train"]["num_clients"] == 2


def test_functions_record_their_federation_without_make():
    for name in METHODS:
        options = {key: OPTIONS[key] for key in OPTIONS if key in ALGORITHMS.parameters(name)}
        direct = ALGORITHMS[name](tiny_model(), local_sgd(), **options)
        assert direct.made_for == make(name, tiny_model(), local_sgd(), **OPTIONS).made_for, name
