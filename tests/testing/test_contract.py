"""Tests that the contract's checks find faulty methods, and pass a sound one."""

import functools

import pytest
import tensorflow as tf

import tff_pfl
from tff_pfl import aggregators, testing
from tff_pfl.local.batches import scan_batches
from tff_pfl.testing import contract


def averaged(change, model, local, **options):
    """Makes a method whose clients upload one number for all weights."""

    def client_work(weights, state, examples, context):
        number = change(examples, context)
        return tff_pfl.ClientOutput(
            state=state,
            upload=tf.nest.map_structure(lambda leaf: tf.fill(leaf.shape, number), weights),
            metrics={"number": tff_pfl.Mean(number, tf.constant(1.0))},
        )

    return tff_pfl.averaging(
        server_init=model.init,
        client_work=client_work,
        personalize=lambda weights, state, examples, context: weights,
        global_weights=lambda weights: weights,
        **options,
    )


def method(change, **options):
    return functools.partial(averaged, change, **options)


def of_batches(weight_of, examples, context):
    """Sums the mean inputs of batches."""

    def step(total, batch):
        inputs, weight = tf.reduce_mean(batch.x, axis=[1, 2, 3]), weight_of(batch)
        return total + tf.reduce_sum(weight * inputs) / tf.reduce_sum(weight)

    zero = tf.constant(0.0)
    return scan_batches(step, zero, examples, epochs=2, batch_size=4, seed=context.seed)


def of_rows(examples, context):
    """Computes the mean of all rows, padding included."""
    return tf.reduce_mean(examples.x)


def of_more_than_one(examples, context):
    """Estimates the variance of the inputs, without handling a single example."""
    means = tf.reduce_mean(examples.x, axis=[1, 2, 3])[: examples.size]
    variance = tf.reduce_sum((means - tf.reduce_mean(means)) ** 2)
    return variance / (tf.cast(examples.size, tf.float32) - 1.0)


def own_steps(model, local):
    """Makes FedAvg whose clients also train a model of their own by the gradient of totals."""

    def client_work(weights, state, examples, context):
        def gradient(weights, batch, carry):
            with tf.GradientTape() as tape:
                tape.watch(weights)
                totals = model.totals(weights, batch, training=True)
                loss = totals["loss"].mean
            return tape.gradient(loss, weights), totals, carry

        trained = local.train(model, weights, examples, context)
        own = local.train(model, state, examples, context, gradient=gradient)
        upload = tf.nest.map_structure(tf.subtract, trained.weights, weights)
        return tff_pfl.ClientOutput(state=own.weights, upload=upload, metrics=trained.totals)

    return tff_pfl.averaging(
        server_init=model.init,
        client_work=client_work,
        client_init=lambda client_id, seed: model.init(seed),
        personalize=lambda weights, state, examples, context: state,
    )


def first_of(stack):
    return tf.nest.map_structure(lambda leaf: leaf[0], stack.value), {}


weighed = functools.partial(of_batches, lambda batch: batch.weight)
unweighed = functools.partial(of_batches, lambda batch: tf.ones_like(batch.weight))
SOUND = method(weighed)
FAULTY = {
    contract.check_partial_batches: (method(unweighed), {}, "a round whose batches .* differs"),
    contract.check_padding: (method(of_rows), {}, "past `examples.size` differs"),
    contract.check_penalty: (own_steps, {}, "1/0/.*kernel does not depend on the model's penalty"),
    contract.check_small_clients: (method(of_more_than_one), {}, "'num_nonfinite', 1"),
    contract.check_order: (
        method(weighed, aggregator=aggregators.StackRuleFactory(first_of)),
        {"needs_uploads": True},
        "the server's state differs",
    ),
    contract.check_seed: (SOUND, {"is_random": False}, "is_random=False, but"),
    contract.check_new_client: (
        SOUND,
        {"starts_global": False},
        r"=False, but .* is the global model\. .* by Subject\.of\(\.\.\., starts_global=True\)",
    ),
    contract.check_secure_sums: (SOUND, {"needs_uploads": True}, "needs_uploads is True, but"),
}


@pytest.mark.thorough_but_one
@pytest.mark.parametrize("check", FAULTY, ids=lambda check: check.__name__)
def test_check_finds_a_fault(check):
    faulty, traits, message = FAULTY[check]
    with pytest.raises(AssertionError, match=message):
        check(testing.Subject.of(faulty, **traits))


@pytest.mark.thorough
@pytest.mark.parametrize(
    "check", [check for check in FAULTY if check is not contract.check_secure_sums]
)
def test_check_passes_a_sound_method(check):
    check(testing.Subject.of(SOUND))
