"""Tests client ids outside the federation that an algorithm was made for."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.federation import (
    EXAMPLES_TYPE,
    eager,
    local_sgd,
    make_client,
    random_examples,
    tiny_model,
)
from tests.marks import slow
from tff_pfl import runtime
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.templates import compose

NUM_CLIENTS = 5
METHODS = [name for name in ALGORITHMS if "num_clients" in ALGORITHMS.parameters(name)]
OPTIONS = {"num_clients": NUM_CLIENTS, "clients_per_round": 2}
MESSAGE = r"(?s)made for num_clients=5: ids 0 to 4. Client ids:.*0,? {}\b"


def in_blocks(name, **options):
    return eager(name, tiny_model(), local_sgd(), **OPTIONS, **options)


# Cohorts of an own loop, with the error that every method has for them.
WRONG_COHORTS = {
    (0, 7): MESSAGE.format(7),
    (0, -1): MESSAGE.format(-1),
    (2, 2): r"(?s)A client must not be in a cohort twice.*Client ids:.*2,? 2",
    (0, "user_17"): r"A client's client_id: .* int32, found dtype str: 'user_17'",
    (0, 2**40): r"A client's client_id: .* int32, found dtype int: 1099511627776",
    (0, 1.5): r"A client's client_id: .* int32, found dtype float: 1.5",
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "create_context"),
    [
        ("pfedhn", lambda: runtime.create_graph_context(vectorize="never")),
        *(
            slow(name, create)
            for name in METHODS
            for create in (runtime.create_graph_context, runtime.create_cpp_context)
        ),
    ],
)
def test_every_method_has_the_same_error_for_an_id_that_is_none(name, create_context):
    options = {**OPTIONS, **({"hidden_width": 2, "hidden_layers": 1} if "hn" in name else {})}
    process = compose(make(name, tiny_model(), local_sgd(), **options), EXAMPLES_TYPE)
    with tff.framework.get_context_stack().install(create_context()):
        state = process.initialize()
        client = make_client(process, 0, random_examples(3))
        for ids, message in WRONG_COHORTS.items():
            ids = [np.int32(i) if i in range(-1, 8) else i for i in ids]
            with pytest.raises(Exception, match=message):
                process.next(state, [client._replace(client_id=i) for i in ids])
            if name == "pfedhn" and ids[1] != 2:  # a server that keeps something for each client
                with pytest.raises(Exception, match=message):
                    process.personalize(state, [client._replace(client_id=i) for i in ids])
        known = [client._replace(client_id=np.int32(i)) for i in (0, NUM_CLIENTS - 1)]
        assert process.next(state, known).state.round_num == 1


@pytest.mark.parametrize(
    ("name", "options", "takes_new_clients"),
    [
        ("scaffold", {}, True),
        ("pfedhn", {}, False),  # the server has no embedding of an unknown client
        ("ifca", {"fixed_clusters": (0, 1, 0, 1, 0)}, False),
    ],
)
def test_blocks_refuse_unknown_clients(name, options, takes_new_clients):
    process = in_blocks(name, **options)
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
