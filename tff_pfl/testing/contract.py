"""Contract checks for algorithms.

    from tff_pfl import testing

    @pytest.mark.parametrize("check", testing.CHECKS)
    def test_my_method(check):
        check(testing.Subject.of(my_method))

A check is a function of a `Subject`; it raises an `AssertionError` that describes the failure.
Checks run on a tiny federation, in the graph runtime unless they say otherwise.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tree

from tff_pfl import runtime
from tff_pfl.aggregators import quiet_secure_sums
from tff_pfl.clients import ClientStateStore, CohortDataSource
from tff_pfl.data import FederatedDataset
from tff_pfl.local import LocalTraining, batches, trees
from tff_pfl.models import Model
from tff_pfl.runtime.graph.clients.pfor_rules import NotVectorizableError
from tff_pfl.templates import (
    Algorithm,
    Client,
    PersonalizedProcess,
    ProcessOutput,
    compose,
    with_aggregator,
)
from tff_pfl.templates.errors import AggregatorError
from tff_pfl.templates.parted_exchange import next_in_parts
from tff_pfl.testing import federation
from tff_pfl.testing.comparing import assert_close, assert_equal, assert_finite, equal
from tff_pfl.testing.eager import EagerProcess

SEED = 3
_SIZES = (6, 5, 9)  # numbers of examples of a cohort's clients


@dataclasses.dataclass(frozen=True)
class Subject:
    """An algorithm on the tiny federation, composed once for all checks.

    Attributes:
        make: `(Model, LocalTraining) -> Algorithm`.
        is_random: Whether rounds draw random numbers, such as the order of batches.
        knows_cohort: Whether a client can influence the others of the cohort before its results
            are rejected.
        needs_uploads: Whether the server needs more than the mean of uploads, so that secure sums
            cannot be used.
        starts_global: Whether the personal model of a client that was never seen is the global
            model, if there is one; `False` if it is adapted to the client's examples.
        reads_inputs: Whether a client reads the inputs of its examples, or their labels alone.
        model: `() -> Model`, a model for the images of the tiny federation.
    """

    make: Callable[[Model, LocalTraining], Algorithm]
    is_random: bool = True
    knows_cohort: bool = False
    needs_uploads: bool = False
    starts_global: bool = True
    reads_inputs: bool = True
    model: Callable[[], Model] = federation.tiny_model

    @classmethod
    @functools.cache
    def of(cls, make: Callable[[Model, LocalTraining], Algorithm], **traits: Any) -> "Subject":
        """Makes a subject; returns the same one for the same arguments."""
        return cls(make, **traits)

    @functools.cached_property
    def algorithm(self) -> Algorithm:
        """The algorithm."""
        model = self.model()
        made = self.make(model, federation.tiny_local())
        return dataclasses.replace(made, evaluated_model=made.evaluated_model or model)

    @functools.cached_property
    def process(self) -> PersonalizedProcess:
        """The process composed of the algorithm."""
        return compose(self.algorithm, federation.EXAMPLES_TYPE, SEED)

    @functools.cached_property
    def state(self) -> Any:
        """The server's state before the first round."""
        return self._run(self.process.initialize)

    @functools.cached_property
    def first_round(self) -> ProcessOutput:
        """The output of a round of ordinary clients."""
        return self.next(self.clients(_SIZES))

    @functools.cached_property
    def eager_round(self) -> ProcessOutput:
        """The output of the same round, run block by block."""
        eager = EagerProcess(self.algorithm, SEED)
        return eager.next(eager.initialize(), self.clients(_SIZES))

    def clients(self, sizes: Sequence[int]) -> list[Client]:
        """Makes new clients with these numbers of examples; client `i` has the id `i`."""
        return [self.client(i, size) for i, size in enumerate(sizes)]

    def client(self, client_id: int, size: int) -> Client:
        """Makes a client that was never seen."""
        state = self._run(self.process.initialize_client, np.int32(client_id))
        examples = federation.tiny_examples(size, seed=client_id)
        return Client(np.int32(client_id), state, examples)

    def next(self, clients: Sequence[Client], state: Any = None) -> ProcessOutput:
        """Runs a round: the first round, if no state is given."""
        return self._run(self.process.next, self.state if state is None else state, list(clients))

    def _run(self, computation, *args):
        with tff.framework.get_context_stack().install(_context()):
            return computation(*args)


@functools.cache
def _context():
    # Without vectorization: its graphs take seconds to build, and results are the same.
    return runtime.create_graph_context(vectorize="never")


def check_types(subject: Subject) -> None:
    """Checks that computations have the types that `PersonalizedProcess` states."""
    process, client_type = subject.process, subject.process.client_type
    assert isinstance(process, tff.templates.IterativeProcess)
    state_type = process.initialize.type_signature.result
    result = process.next.type_signature.result
    weights_type = process.evaluated_model.weights_type
    at_clients = functools.partial(tff.types.FederatedType, placement=tff.CLIENTS)
    function = tff.types.FunctionType
    same = tff.test.assert_types_equivalent
    same(client_type.data, federation.EXAMPLES_TYPE)
    same(process.next.type_signature.parameter[1], at_clients(client_type))
    same(result.state, state_type)
    same(result.clients, at_clients(client_type.state))
    assert result.metrics.placement is tff.SERVER
    same(process.initialize_client.type_signature, function(np.int32, client_type.state))
    same(process.personalize.type_signature.parameter, process.next.type_signature.parameter)
    same(process.personalize.type_signature.result, at_clients(weights_type))
    if (global_weights := process.global_weights) is not None:
        weights_type = process.global_model.weights_type
        same(global_weights.type_signature, function(state_type.member, weights_type))


def check_determinism(subject: Subject) -> None:
    """Checks that a repeated round gives the same result, also block by block."""
    again = subject.next(subject.clients(_SIZES))
    assert_equal(subject.first_round, again, "a second call of the same round")
    found = subject.eager_round
    assert_close(
        (subject.first_round.state.algorithm, subject.first_round.clients),
        (found.state.algorithm, found.clients),
        "the same round, block by block",
    )


def check_seed(subject: Subject) -> None:
    """Checks that another seed changes a round if and only if it draws random numbers."""
    another = EagerProcess(subject.algorithm, SEED + 1)
    rounds = subject.eager_round, another.next(subject.state, subject.clients(_SIZES))
    is_same = equal(*((found.state.algorithm, found.clients) for found in rounds))
    assert is_same != subject.is_random, (
        f"is_random={subject.is_random}, but rounds of two seeds show the opposite"
    )


def check_order(subject: Subject) -> None:
    """Checks that the order of a cohort's clients does not matter, except for rounding."""
    order = [2, 0, 1]
    clients = subject.clients(_SIZES)
    shuffled = subject.next([clients[i] for i in order])
    assert_close(shuffled.state, subject.first_round.state, "the server's state")
    assert_close(
        shuffled.clients, [subject.first_round.clients[i] for i in order], "the clients' states"
    )


def check_padding(subject: Subject) -> None:
    """Checks that rows past a client's examples do not matter.

    They are NaN here, which a weight of 0 does not hide: mask rows with `tf.where`.
    """

    def changed(client):
        data = client.data
        is_padding = np.arange(federation.CAPACITY) >= data.size
        x = np.where(is_padding[:, None, None, None], np.float32("nan"), data.x)
        return client._replace(data=data._replace(x=x, y=np.where(is_padding, 0, data.y)))

    found = subject.next(list(map(changed, subject.clients(_SIZES))))
    assert_equal(found, subject.first_round, "the round with other rows past `examples.size`")


def check_partial_batches(subject: Subject) -> None:
    """Checks that the examples of weight 0 that fill a partial batch do not matter."""
    fill = batches._filled

    def fill_otherwise(rows, is_example, filler):
        number = tf.maximum(trees.count(is_example), 1)
        return fill(rows, is_example, (filler + 1) % number)

    rounds = []
    for filled in (fill, fill_otherwise):
        eager = EagerProcess(subject.algorithm, SEED)
        with mock.patch.object(batches, "_filled", filled):
            output = eager.next(subject.state, subject.clients((5,)))
        rounds.append((output.state.algorithm, output.clients, output.metrics))
    first, other = rounds
    assert_close(first, other, "a round whose batches are filled with other examples of weight 0")


def check_penalty(subject: Subject) -> None:
    """Checks that the model's penalty, such as of Keras' regularizers, counts where its loss does.

    The gradient of `Model.totals` or `Model.example_values` lacks it: follow `Model.gradient`, or
    add `Model.penalty`.
    """
    model = subject.model()
    loss = model.task.example_loss
    shapes = [np.shape(leaf) for leaf in tree.flatten(model.init(0)) if np.ndim(leaf) > 1]

    def differing(**changes):
        """Returns which values of a round differ for a changed model: kernels, or any value."""
        algorithm = subject.make(dataclasses.replace(model, **changes), federation.tiny_local())
        other = EagerProcess(algorithm, SEED).next(subject.state, subject.clients(_SIZES))
        rounds = [(it.state.algorithm, it.clients) for it in (subject.eager_round, other)]
        pairs = list(zip(*map(tree.flatten_with_path, rounds), strict=True))
        paths = [(path, np.shape(a)) for (path, a), (_, b) in pairs if not np.array_equal(a, b)]
        kernels = {"/".join(map(str, path)) for path, shape in paths if shape[-2:] in shapes}
        return kernels | {"the round"} if paths else kernels

    penalized = differing(penalty=lambda weights: 0.01 * trees.dot(weights, weights))
    doubled = differing(task=model.task.with_loss(lambda y, outputs: 2 * loss(y, outputs)))
    assert not (lost := doubled - penalized), (
        f"{min(lost)} does not depend on the model's penalty: the gradient of totals or "
        "example_values lacks it, so follow model.gradient, or add model.penalty(weights)"
    )


def check_small_clients(subject: Subject) -> None:
    """Checks that clients with one example, less than a batch, and one batch take part."""
    output = subject.next(subject.clients((1, 3, 4)))
    assert_finite(output, "the round")
    metrics = next(iter(output.metrics.values()))
    assert (metrics["num_clients"], metrics["num_examples"]) == (3, 8), metrics


def check_empty_client(subject: Subject) -> None:
    """Checks that a client without examples changes nothing, and is counted."""
    clients = subject.clients((6, 0, 9))
    output = subject.next(clients)
    assert_equal(output.clients[1], clients[1].state, "the state of the client")
    _assert_left_out(subject, output, "num_empty")


def check_nonfinite_client(subject: Subject) -> None:
    """Checks that a client whose results are not finite is rejected, and counted."""
    for bad in (np.nan, np.inf):
        clients = subject.clients(_SIZES)
        clients[1].data.x[2:4, 0, 0, 0] = bad  # one of the two may be for validation
        output = subject.next(clients)
        assert_equal(output.clients[1], clients[1].state, "the state of the client")
        if subject.knows_cohort or not subject.reads_inputs:
            assert_finite((output.state, output.clients), "the round")
        else:
            _assert_left_out(subject, output, "num_nonfinite")


def _assert_left_out(subject, output, count):
    """Asserts that a round equals a round of only the clients with 6 and 9 examples."""
    without = subject.next([subject.client(i, size) for i, size in ((0, 6), (2, 9))])
    assert_close(
        (output.state.algorithm, output.clients[0::2]),
        (without.state.algorithm, without.clients),
        "(If a client can influence others before it is rejected, set knows_cohort=True.) The "
        "round, with and without the client,",
    )
    exchange_metrics = [
        metrics for metrics in output.metrics.values() if isinstance(metrics, Mapping)
    ]
    assert sum(metrics[count] for metrics in exchange_metrics) >= 1, f"{count} is 0"
    assert exchange_metrics[-1]["num_clients"] == 2, exchange_metrics[-1]


def check_empty_cohort(subject: Subject) -> None:
    """Checks that the server keeps its state if no client has examples; the round counts."""
    _assert_kept(subject, subject.clients((0, 0, 0)))


def check_nobody(subject: Subject) -> None:
    """Checks that the server keeps its state if the cohort is empty; the round counts."""
    _assert_kept(subject, [])


def _assert_kept(subject, clients):
    output = subject.next(clients)
    assert_equal(output.state.algorithm, subject.state.algorithm, "the server's state")
    metrics = next(iter(output.metrics.values()))
    assert metrics["server_kept"] == 1, metrics
    assert output.state.round_num == 1


def check_new_client(subject: Subject) -> None:
    """Checks the model of a client that never took part: see `Subject.starts_global`."""
    state = subject.first_round.state
    newcomers = [subject.client(7 - i, 5) for i in range(3)]
    models = subject._run(subject.process.personalize, state, newcomers)
    assert_finite(models, "the personal models")
    process = subject.process
    is_same_network = process.global_model is process.evaluated_model
    if process.global_weights is not None and is_same_network:
        expected = subject._run(subject.process.global_weights, state)
        for model in models:
            is_global = equal(model, expected)
            assert is_global == subject.starts_global, (
                f"starts_global={subject.starts_global}, but the model of a new client is "
                f"{'' if is_global else 'not '}the global model. If the method is to "
                f"{'use' if is_global else 'adapt'} the global model, make the subject by "
                f"Subject.of(..., starts_global={is_global})."
            )


def check_absent_client(subject: Subject) -> None:
    """Checks that a client outside the cohort keeps its state, bit for bit."""
    data = [federation.tiny_examples(5 + i, seed=i) for i in range(5)]
    dataset = FederatedDataset.from_client_arrays(
        [(d.x[: d.size], d.y[: d.size], d.x[:2], d.y[:2]) for d in data], federation.NUM_CLASSES
    )
    process = subject.process
    with tff.framework.get_context_stack().install(_context()):
        store = ClientStateStore(process.initialize_clients, process.client_state_type)
        source = CohortDataSource(
            dataset, store, process.client_type, seed=1, capacity=federation.CAPACITY
        )
        iterator, state = source.iterator(), subject.state
        for _ in range(3):
            before = store.get(range(5))
            output = process.next(state, iterator.select(3))
            state = output.state
            iterator.update(output.clients)
            after = store.get(range(5))
            for i in set(range(5)) - set(iterator.cohort):
                assert_equal(before[i], after[i], f"the state of absent client {i}")
            assert_equal([after[i] for i in iterator.cohort], output.clients, "the new states")


def check_bytes(subject: Subject) -> None:
    """Checks that metrics have the number of bytes that a client receives and sends."""
    sent = subject.eager_round.metrics
    for name in ("bytes_down_per_client", "bytes_up_per_client"):
        found = subject.first_round.metrics[name]
        assert found == sent[name], f"{name} is {found}, but {sent[name]} bytes are sent"


def check_stock_runtime(subject: Subject) -> None:
    """Checks that TFF's own runtime gives the same round."""
    _check_runtime(subject, runtime.create_cpp_context())


def check_vectorized(subject: Subject) -> None:
    """Checks that vectorized clients give the same round."""
    _check_runtime(subject, runtime.create_graph_context())


def check_compiled(subject: Subject) -> None:
    """Checks that clients give the same round where XLA compiles their work, also as on GPUs."""
    _check_runtime(subject, runtime.create_graph_context(jit_compile=True))
    with contextlib.suppress(NotVectorizableError):
        context = runtime.create_graph_context(vectorize="always", jit_compile=True)
        _check_runtime(subject, context)


def _check_runtime(subject, context):
    with tff.framework.get_context_stack().install(context):
        found = subject.process.next(subject.process.initialize(), subject.clients(_SIZES))
    expected = subject.first_round
    assert_close((found.state, found.clients), (expected.state, expected.clients), "the round")


def check_parts(subject: Subject) -> None:
    """Checks that a cohort that is computed in two parts gives the same round."""
    process, (first, *others) = subject.process, subject.clients(_SIZES)
    found = next_in_parts(process, process.initialize(), [[first], others])
    expected = subject.first_round
    assert_close((found.state, found.clients), (expected.state, expected.clients), "the round")


def check_secure_sums(subject: Subject) -> None:
    """Checks that with secure sums nothing of a client is aggregated in the clear.

    This covers uploads, counts and metrics. It is proved for the computation, without running it.
    An algorithm that needs uploads must refuse the aggregator instead.
    """
    try:
        with quiet_secure_sums():
            algorithm = with_aggregator(subject.algorithm, _secure_aggregator())
    except AggregatorError as refusal:
        assert subject.needs_uploads, f"needs_uploads is False, but: {refusal}"
        return
    assert not subject.needs_uploads, "needs_uploads is True, but secure sums can be used"
    with quiet_secure_sums():
        process = compose(algorithm, federation.EXAMPLES_TYPE, SEED)
    tff.test.assert_not_contains_unsecure_aggregation(process.next)


# Making one takes a second.
_secure_aggregator = functools.cache(tff.learning.secure_aggregator)


CHECKS = (
    check_types,
    check_determinism,
    check_seed,
    check_order,
    check_padding,
    check_partial_batches,
    check_penalty,
    check_small_clients,
    check_empty_client,
    check_nonfinite_client,
    check_empty_cohort,
    check_nobody,
    check_new_client,
    check_absent_client,
    check_bytes,
    check_secure_sums,
    check_stock_runtime,
    check_vectorized,
    check_compiled,
)
