"""Algorithms of `tff.learning` on small models: their states, metrics and weights after rounds.

Every client's data differ in size; one client has none.
"""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.catalogue import Catalogue, Run

case = Catalogue()

SIZES = (5, 2, 0, 4)
FEATURES, CLASSES = 4, 3
INPUT_SPEC = collections.OrderedDict(
    x=tf.TensorSpec([None, FEATURES], tf.float32), y=tf.TensorSpec([None], tf.int32)
)


@functools.cache
def client_data(sizes=SIZES, seed=0) -> list[tf.data.Dataset]:
    """Shuffled batches of two examples, with a partial one at the end, for two epochs."""

    def dataset(client, size):
        rng = np.random.default_rng([client, seed])
        x = rng.normal(size=(size, FEATURES)).astype(np.float32)
        y = rng.integers(0, CLASSES, size).astype(np.int32)
        examples = tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y))
        examples = examples.shuffle(10, seed=1, reshuffle_each_iteration=False)
        return examples.repeat(2).batch(2)

    return [dataset(*pair) for pair in enumerate(sizes)]


def loss() -> tf.keras.losses.Loss:
    return tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def layer(units, activation=None, **options):
    kernel = tf.keras.initializers.RandomNormal(stddev=0.5, seed=units)
    return tf.keras.layers.Dense(units, activation, kernel_initializer=kernel, **options)


def model_fn():
    network = tf.keras.Sequential([layer(5, "relu", input_shape=(FEATURES,)), layer(CLASSES)])
    return tff.learning.models.from_keras_model(
        network,
        loss=loss(),
        input_spec=INPUT_SPEC,
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
    )


def functional_model() -> tff.learning.models.FunctionalModel:
    """Logistic regression."""

    @tf.function
    def predict_on_batch(model_weights, x, training=False):
        del training
        (kernel, bias), _ = model_weights
        return tf.matmul(x, kernel) + bias

    @tf.function
    def loss_of_batch(output, label, sample_weight=None):
        del sample_weight
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, output)
        return tf.reduce_mean(losses)

    kernel, bias = np.zeros((FEATURES, CLASSES), np.float32), np.zeros(CLASSES, np.float32)
    return tff.learning.models.FunctionalModel(
        initial_weights=((kernel, bias), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=loss_of_batch,
        input_spec=INPUT_SPEC,
    )


def sgd(learning_rate=0.1, **options) -> tff.learning.optimizers.Optimizer:
    return tff.learning.optimizers.build_sgdm(learning_rate, **options)


def rounds(process, data, num_rounds=2) -> list:
    """Outputs of all rounds; the state goes out of one and into the next."""
    outputs = [process.initialize()]
    state = outputs[0]
    for _ in range(num_rounds):
        outputs.append(process.next(state, data))
        state = outputs[-1].state
    return outputs


def train(process) -> Run:
    def run():
        outputs = rounds(process, client_data())
        return outputs, process.get_model_weights(outputs[-1].state)

    return Run(run)


algorithms = tff.learning.algorithms


@functools.cache
def fed_avg_process() -> tff.learning.templates.LearningProcess:
    return algorithms.build_weighted_fed_avg(model_fn, client_optimizer_fn=sgd())


@case()
def fed_avg():
    return train(fed_avg_process())


@case()
def fed_avg_of_cohorts_that_differ():
    """The clients of one of them have no data."""
    process = fed_avg_process()

    def run():
        state = process.initialize()
        outputs = []
        for sizes in [(3, 1), (4,), (0, 0), (6, 2)]:
            outputs.append(process.next(state, client_data(sizes)))
            state = outputs[-1].state
        return outputs

    return Run(run)


@case()
def fed_avg_of_a_functional_model():
    return train(algorithms.build_weighted_fed_avg(functional_model(), client_optimizer_fn=sgd()))


@case(slow=True)
def fed_avg_without_weights_with_adam():
    process = algorithms.build_unweighted_fed_avg(
        model_fn,
        client_optimizer_fn=sgd(momentum=0.9),
        server_optimizer_fn=tff.learning.optimizers.build_adam(0.01),
    )
    return train(process)


@case(slow=True)
def fed_avg_with_a_schedule():
    process = algorithms.build_weighted_fed_avg_with_optimizer_schedule(
        model_fn, lambda round_num: 0.1 / (1 + tf.cast(round_num, tf.float32)), sgd
    )
    return train(process)


@case(slow=True)
def fed_prox():
    process = algorithms.build_weighted_fed_prox(
        model_fn, proximal_strength=0.5, client_optimizer_fn=sgd()
    )
    return train(process)


@case(slow=True)
def fed_sgd():
    return train(algorithms.build_fed_sgd(model_fn))


@case(slow=True)
def mime_lite():
    return train(algorithms.build_weighted_mime_lite(model_fn, sgd(momentum=0.9)))


@case()
def fed_eval():
    return train(algorithms.build_fed_eval(model_fn))


def train_with(aggregator) -> Run:
    process = algorithms.build_weighted_fed_avg(
        model_fn, client_optimizer_fn=sgd(), model_aggregator=aggregator
    )
    return train(process)


@case(slow=True)
def fed_avg_with_robust_aggregator():
    return train_with(tff.learning.robust_aggregator(zeroing=True, clipping=True))


@case(slow=True)
def fed_avg_with_secure_aggregator():
    return train_with(tff.learning.secure_aggregator())


@case(slow=True)
def fed_avg_with_compression_aggregator():
    return train_with(tff.learning.compression_aggregator())


def train_privately(aggregator) -> Run:
    process = algorithms.build_unweighted_fed_avg(
        model_fn, client_optimizer_fn=sgd(), model_aggregator=aggregator
    )
    return train(process)


# Differential privacy without noise, which is random.


@case()
def fed_avg_with_private_aggregator():
    aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        noise_multiplier=0.0, clients_per_round=len(SIZES), clip=0.1
    )
    return train_privately(aggregator)


@case(slow=True)
def fed_avg_with_adaptive_private_aggregator():
    aggregator = tff.aggregators.DifferentiallyPrivateFactory.gaussian_adaptive(
        noise_multiplier=0.0, clients_per_round=len(SIZES), clipped_count_stddev=0.0
    )
    return train_privately(aggregator)


def reconstruction_model() -> tff.learning.models.ReconstructionModel:
    """The first layer is global; the second is every client's own."""
    hidden, head = layer(5, "relu", input_shape=(FEATURES,)), layer(CLASSES)
    return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
        keras_model=tf.keras.Sequential([hidden, head]),
        global_layers=[hidden],
        local_layers=[head],
        input_spec=INPUT_SPEC,
    )


RECONSTRUCTION = {
    "loss_fn": loss,
    "metrics_fn": lambda: [tf.keras.metrics.SparseCategoricalAccuracy()],
    "reconstruction_optimizer_fn": sgd(0.2),
    "dataset_split_fn": tff.learning.models.ReconstructionModel.build_dataset_split_fn(
        recon_epochs=2, post_recon_epochs=1
    ),
}


@case()
def fed_recon():
    process = algorithms.build_fed_recon(
        reconstruction_model,
        client_optimizer_fn=sgd(0.1),
        server_optimizer_fn=sgd(1.0),
        **RECONSTRUCTION,
    )
    return train(process)


@case(slow=True)
def fed_recon_eval():
    return train(algorithms.build_fed_recon_eval(reconstruction_model, **RECONSTRUCTION))


@case()
def fed_kmeans():
    process = algorithms.build_fed_kmeans(
        num_clusters=2, data_shape=(FEATURES,), random_seed=(1, 2)
    )

    def run():
        points = [data.unbatch().map(lambda e: e["x"]) for data in client_data()]
        return rounds(process, points)

    return Run(run)


@case(slow=True)
def personalization_evaluation():
    """Every client trains the model on a part of its data and reports how much that helped."""

    def build_fine_tuning():
        optimizer = tf.keras.optimizers.legacy.SGD(0.1)

        @tf.function
        def fine_tune(model, train_data, test_data, context=None):
            del context
            for batch in train_data.batch(2):
                with tf.GradientTape() as tape:
                    output = model.forward_pass(batch, training=True)
                weights = model.trainable_variables
                optimizer.apply_gradients(
                    zip(tape.gradient(output.loss, weights), weights, strict=True)
                )
            total = 0.0
            for batch in test_data.batch(2):
                total += model.forward_pass(batch, training=False).loss
            return collections.OrderedDict(loss=total)

        return fine_tune

    def evaluate(model, data):
        @tf.function
        def total_loss():
            total = 0.0
            for batch in data.batch(2):
                total += model.forward_pass(batch, training=False).loss
            return total

        return collections.OrderedDict(loss=total_loss())

    evaluation = algorithms.build_personalization_eval_computation(
        model_fn, collections.OrderedDict(sgd=build_fine_tuning), evaluate
    )
    initial = tff.learning.models.ModelWeights.from_model(model_fn())
    weights = tf.nest.map_structure(lambda v: v.numpy(), initial)

    def run():
        data = [examples.unbatch() for examples in client_data((5, 2, 4))]
        clients = [collections.OrderedDict(train_data=d, test_data=d) for d in data]
        return evaluation(weights, clients)

    return Run(run)
