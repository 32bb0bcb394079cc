"""Tests the uploads of each attack by name."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_equal, local_sgd, make_clients, tiny_model
from tests.marks import slow
from tests.templates.mean_process import (
    EXAMPLES_TYPE,
    Visits,
    algorithm,
    clients,
    examples,
    mean_exchange,
)
from tff_pfl import attacks, runtime
from tff_pfl.aggregators import StackFactory
from tff_pfl.algorithms import make
from tff_pfl.attacks import ATTACKS
from tff_pfl.attacks.inner_product import inner_product
from tff_pfl.local import ClientContext
from tff_pfl.templates import AGGREGATORS, ClientOutput, compose, errors, with_aggregator
from tff_pfl.testing.eager import EagerProcess

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")
NUM_CLASSES = 3


def uploads_of(attack, *values, rounds=1, seed=0, ids=None, **options):
    """Returns the uploads of clients in each round, with a server that stays at [1, 2]."""

    def finalize(server, stack, round_num):
        return server, {"uploads": stack.value}

    exchange = mean_exchange(aggregator=StackFactory(), finalize=finalize)
    process = EagerProcess(attack(algorithm(exchange), **options), seed)
    state, cohort = process.initialize(), clients(process, *map(examples, values), ids=ids)
    sent = []
    for _ in range(rounds):
        output = process.next(state, cohort)
        state = output.state
        sent.append(output.metrics["train"]["server"]["uploads"])
    return np.array(sent)


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_needs_attackers(name):
    honest = algorithm(mean_exchange())
    needed = {"num_classes": NUM_CLASSES} if name == "label_flip" else {}
    assert ATTACKS[name](honest, **needed).exchanges == honest.exchanges
    with pytest.raises(ValueError, match="client_ids must be a sequence of numbers"):
        ATTACKS[name](honest, client_ids=[-1], **needed)
    attacked = ATTACKS[name](honest, client_ids=[1], **needed)
    assert attacked.exchanges != honest.exchanges
    assert attacked.personalize is honest.personalize  # Evaluations are not attacked.


def test_sign_flipped_sends_the_opposite():
    (sent,) = uploads_of(attacks.sign_flipped, 4.0, 3.0, client_ids=[1])
    np.testing.assert_array_equal(sent, [[3.0, 2.0], [-2.0, -1.0]])


class TestNoise:
    def test_noise_replaces_the_upload(self):
        (sent,) = uploads_of(attacks.noise, 4.0, 3.0, client_ids=[1], standard_deviation=0.0)
        np.testing.assert_array_equal(sent, [[3.0, 2.0], [0.0, 0.0]])

    def test_noise_is_a_function_of_seed_client_and_round(self):
        def send(seed=0, **options):
            return uploads_of(attacks.noise, 4.0, 4.0, rounds=2, seed=seed, **options)

        first = send(client_ids=[0, 1])
        np.testing.assert_array_equal(first, send(client_ids=[0, 1]))
        np.testing.assert_array_equal(first[:, 1], send(client_ids=[1])[:, 1])
        many = np.concatenate([first, send(1, client_ids=[0, 1])])
        assert np.unique(many).size == 2 * many.shape[0] * 2

    def test_noise_differs_between_tensors_and_from_training(self):
        exchange = mean_exchange(
            client_work=lambda server, state, data, context: ClientOutput(
                state, [tf.ones([3]), tf.ones([3])]
            )
        )
        (attacked,) = attacks.noise(algorithm(exchange), client_ids=[1]).exchanges
        context = ClientContext(tf.constant(0), tf.constant(1), tf.constant([5, 6]))
        sent = attacked.client_work(tf.zeros([2]), Visits(0), examples(1.0), context).upload
        fold_in = tf.random.experimental.stateless_fold_in
        seed = fold_in(context.seed, 0x4E0153)
        expected = [tf.random.stateless_normal([3], fold_in(seed, index)) for index in range(2)]
        np.testing.assert_array_equal(sent, expected)

    def test_noise_has_the_standard_deviation(self):
        ids = list(range(60))
        (sent,) = uploads_of(attacks.noise, *[5.0] * 60, client_ids=ids, standard_deviation=10.0)
        assert abs(sent.mean()) < 3.0
        assert sent.std() == pytest.approx(10.0, rel=0.2)


def fedavg_round(attack=None, labels=lambda y: y, **options):
    """Returns the server's weights and metrics after a round of three clients."""
    fedavg = make("fedavg", tiny_model(), local_sgd())
    process = EagerProcess(attack(fedavg, **options) if attack else fedavg)
    cohort = make_clients(process, (6, 9, 4))
    attacker = cohort[1].data
    cohort[1] = cohort[1]._replace(data=attacker._replace(y=labels(attacker.y)))
    output = process.next(process.initialize(), cohort)
    return output.state.algorithm.weights, output.metrics["train"]


def test_label_flip_equals_training_on_flipped_labels():
    flipped = fedavg_round(attacks.label_flip, client_ids=[1], num_classes=NUM_CLASSES)
    by_hand = fedavg_round(labels=lambda y: (NUM_CLASSES - 1 - y).astype(np.int32))
    assert_equal(flipped, by_hand)
    honest = fedavg_round(attacks.label_flip, client_ids=[7], num_classes=NUM_CLASSES)
    assert_equal(honest, fedavg_round())
    weights = flipped[0], honest[0]
    assert not np.allclose(*(np.ravel(tf.nest.flatten(own)[0]) for own in weights))


# In the following tests, the server starts at [1, 2], which clients subtract from their values.


def attacked_mean(aggregator=None, values=(4.0, 3.0, 7.0), sizes=(1, 1, 1), **options):
    """Returns the server's change by the mean, or another aggregator; client 1 attacks."""
    honest = algorithm(mean_exchange())
    if aggregator is not None:
        honest = with_aggregator(honest, aggregator)
    process = compose(inner_product(honest, client_ids=[1], **options), EXAMPLES_TYPE)
    state = process.initialize()
    data = [examples(*[value] * size) for value, size in zip(values, sizes, strict=True)]
    output = process.next(state, clients(process, *data))
    return np.array(output.state.algorithm) - [1.0, 2.0]


class TestInnerProduct:
    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "context", [runtime.create_graph_context, slow(runtime.create_cpp_context)]
    )
    def test_attackers_send_the_opposite_of_the_honest_mean(self, context):
        with tff.framework.get_context_stack().install(context()):
            # Honest uploads are [3, 2] once and [6, 5] three times, with the mean [5.25, 4.25].
            found = attacked_mean(sizes=(1, 2, 3), epsilon=2.0)
        expected = (np.array([21.0, 17.0]) - 2 * 2.0 * np.array([5.25, 4.25])) / 6
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    @pytest.mark.thorough
    def test_aggregator_of_the_server_sees_the_attack(self):
        found = attacked_mean(AGGREGATORS["median"](), epsilon=0.1)
        # The median is of [3, 2], -0.1 [4.5, 3.5] and [6, 5].
        np.testing.assert_allclose(found, [3.0, 2.0])
        unweighted = tff.aggregators.UnweightedMeanFactory()
        found = attacked_mean(unweighted, sizes=(1, 5, 1), epsilon=0.0)
        np.testing.assert_allclose(found, [3.0, 7.0 / 3], rtol=1e-6)

    @pytest.mark.thorough
    def test_clients_left_out_are_not_in_the_mean(self):
        found = attacked_mean(values=(4.0, 3.0, np.nan), epsilon=1.0)
        np.testing.assert_allclose(found, [0.0, 0.0], atol=1e-6)

    def test_aggregator_must_be_chosen_before_the_attack(self):
        attacked = inner_product(algorithm(mean_exchange()), client_ids=[0])
        with pytest.raises(errors.AggregatorError, match="choose the aggregator before the attack"):
            with_aggregator(attacked, AGGREGATORS["median"]())
