"""Tests `tff_pfl.aggregators.branch_mean`."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.federation import assert_close, leaves
from tests.marks import together
from tff_pfl.aggregators import BranchMeanFactory, Shares
from tff_pfl.aggregators.branch_mean import mean_of_sums

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

BRANCHES, NUM_CLIENTS = 3, 4
WEIGHT = tff.types.to_type(np.float32)
WEIGHTS = list(np.float32([3, 0, 1, 7]))


def zeros(*shape):
    return np.zeros(shape, np.float32)


# In `alone`, each tensor has its own share; in `grid`, each entry of the first two axes has one.
VALUE = collections.OrderedDict(
    dense=collections.OrderedDict(kernel=zeros(BRANCHES, 2, 4), bias=zeros(BRANCHES, 4)),
    norm=collections.OrderedDict(gamma=zeros(5), beta=zeros()),
    alone=collections.OrderedDict(scalar=zeros(), rows=zeros(2, 3)),
    grid=zeros(2, 3, 2),
)
SHARE = collections.OrderedDict(
    dense=zeros(BRANCHES),
    norm=zeros(),
    alone=collections.OrderedDict(scalar=zeros(), rows=zeros(2)),
    grid=zeros(2, 3),
)
# Aggregators other than a sum take one layer.
UPLOADS = {"all": Shares(VALUE, SHARE), "dense": Shares(VALUE["dense"], SHARE["dense"])}


def upload_type(upload):
    types = tf.nest.map_structure(lambda x: tff.types.TensorType(x.dtype, x.shape), upload)
    return tff.types.StructWithPythonType(list(types._asdict().items()), Shares)


def uploads(num_clients=NUM_CLIENTS, share=None, layers="all"):
    rng = np.random.default_rng(num_clients)

    def normal(leaf):
        return rng.normal(size=leaf.shape).astype(np.float32)

    def uniform(leaf):
        return rng.uniform(size=leaf.shape).astype(np.float32)

    map_leaves = tf.nest.map_structure
    value, shares = UPLOADS[layers]
    return [
        Shares(map_leaves(normal, value), map_leaves(share or uniform, shares))
        for _ in range(num_clients)
    ]


@functools.cache
def process_of(*options, layers="all"):
    return BranchMeanFactory(*options).create(upload_type(UPLOADS[layers]), WEIGHT)


def run(process, values, weights=WEIGHTS):
    return process.next(process.initialize(), values, weights)


def times(share, value):
    """Multiplies all tensors that a share stands for by the share."""
    if isinstance(share, dict):
        products = ((key, times(share[key], value[key])) for key in share)
        return collections.OrderedDict(products)
    share = np.asarray(share, np.float64)
    return tf.nest.map_structure(
        lambda v: share.reshape(share.shape + (1,) * (np.ndim(v) - share.ndim)) * v, value
    )


def pairs(values):
    """Returns `(s_i v_i, s_i)` of each client."""
    pairs = [Shares(times(upload.share, upload.value), upload.share) for upload in values]
    return tf.nest.map_structure(np.float64, pairs)


def quotient(sums):
    """Divides the two sums, branch by branch; 0 / 0 is not a number."""
    ones = tf.nest.map_structure(np.ones_like, sums.value)
    return tf.nest.map_structure(np.divide, sums.value, times(sums.share, ones))


def mean(values):
    """Computes `sum n s v / sum n s`."""
    return quotient(
        tf.nest.map_structure(lambda *rows: np.tensordot(WEIGHTS, rows, 1), *pairs(values))
    )


def test_process_has_the_documented_types():
    process = process_of(layers="dense")
    value = "<kernel=float32[3,2,4],bias=float32[3,4]>"
    assert str(process.next.type_signature) == (
        f"(<state=<>@SERVER,value={{<value={value},share=float32[3]>}}@CLIENTS,"
        f"weight={{float32}}@CLIENTS> -> "
        f"<state=<>@SERVER,result={value}@SERVER,measurements=<>@SERVER>)"
    )


def test_branch_mean_matches_numpy():
    result = run(process_of(), uploads()).result
    assert list(result) == list(VALUE)
    assert_close(result, mean(uploads()))


def test_equal_shares_give_the_weighted_mean():
    """Uses several shares that are equal for all clients."""
    plain = tff.aggregators.MeanFactory().create(upload_type(UPLOADS["all"]).value, WEIGHT)
    share = uploads(1)[0].share
    found = run(process_of(), [upload._replace(share=share) for upload in uploads()]).result
    assert_close(found, run(plain, [upload.value for upload in uploads()]).result)


def test_parts_without_shares_are_0():
    values = uploads()
    for upload in values:
        upload.share["dense"][1] = 0.0
        upload.share["norm"] = np.float32(0)
    with np.errstate(invalid="ignore"):
        expected = tf.nest.map_structure(np.nan_to_num, mean(values))
    assert np.count_nonzero(expected["dense"]["kernel"]) == 2 * 8
    assert_close(run(process_of(), values).result, expected)


@together("weights", [[np.float32(0)] * NUM_CLIENTS, []])
def test_mean_of_nobody_is_0(weights):
    for leaf in leaves(run(process_of(), uploads()[: len(weights)], weights).result):
        np.testing.assert_array_equal(leaf, np.zeros_like(leaf))


@pytest.mark.parametrize(("share", "known"), [(1e-10, True), (1e-13, False)])
def test_small_shares_count_down_to_a_limit(share, known):
    values = uploads(2, share=lambda leaf: np.full_like(leaf, share))
    result = run(process_of(), values, [np.float32(1), np.float32(3)]).result
    expected = tf.nest.map_structure(
        lambda a, b: known * (a + 3 * b) / 4, *[upload.value for upload in values]
    )
    assert_close(result, expected)


def test_nan_shares_give_nan():
    """Lets the server keep its state, as for an aggregator that has too few clients."""
    sums = Shares({"w": tf.ones([2, 3])}, {"w": tf.constant([np.nan, 2.0])})
    np.testing.assert_array_equal(mean_of_sums(sums)["w"], [[np.nan] * 3, [0.5] * 3])


def test_shares_can_have_another_data_type_than_values():
    values = [
        upload._replace(value=tf.nest.map_structure(np.float64, upload.value))
        for upload in uploads()
    ]
    process = BranchMeanFactory().create(upload_type(values[0]), WEIGHT)
    result = run(process, values).result
    assert {leaf.dtype for leaf in leaves(result)} == {np.dtype(np.float64)}
    assert_close(result, mean(values))


@together("value_type", [np.float32, collections.OrderedDict(share=np.float32, value=np.float32)])
def test_uploads_with_other_fields_are_refused(value_type):
    with pytest.raises(TypeError, match="^A branch mean takes the fields .* found .*float32"):
        BranchMeanFactory().create(tff.types.to_type(value_type), WEIGHT)


@together(
    ("value", "share", "message"),
    [
        (zeros(3, 2), zeros(2), r"Shares of shape \(2,\) do not fit a tensor of \("),
        (zeros(2), zeros(2, 1), r"Shares of shape \(2, 1\) do not fit a tensor of \("),
        ({"a": zeros(2)}, {"b": zeros(2)}, "Shares do not fit the value: "),
        ({"a": zeros(2), "b": zeros(2)}, {"a": zeros(2)}, "Shares do not fit the value: "),
    ],
)
def test_shares_that_do_not_fit_are_refused(value, share, message):
    with pytest.raises(TypeError, match=message):
        BranchMeanFactory().create(upload_type(Shares(value, share)), WEIGHT)


# The tests below are of aggregators that replace the sum of the pairs.


@pytest.mark.thorough
def test_pairs_are_clipped_as_one():
    """Uses two rounds, which have different clipping norms."""
    clipped = tff.aggregators.clipping_factory(
        tff.aggregators.PrivateQuantileEstimationProcess.no_noise(1.0, 0.5, 1.0),
        tff.aggregators.SumFactory(),
    )
    process, alone = (
        process_of(clipped, layers="dense"),
        clipped.create(upload_type(UPLOADS["dense"])),
    )
    state = alone.initialize()
    for cohort in (slice(0, 3), slice(1, 4)):
        values = uploads(layers="dense")[cohort]
        output = process.next(state, values, WEIGHTS[cohort])
        expected = alone.next(state, tf.nest.map_structure(np.float32, pairs(values)))
        assert_close(output.state, expected.state)
        assert_close(output.measurements, expected.measurements)
        assert_close(output.result, quotient(expected.result))
        assert leaves(output.state) != leaves(state)
        state = output.state


def test_mean_receives_the_weights():
    found = run(process_of(tff.aggregators.MeanFactory(), layers="dense"), uploads(layers="dense"))
    assert_close(found.result, mean(uploads(layers="dense")))


@pytest.mark.parametrize(("noise", "limit"), [(0.05, 0.1), (0.5, 1 / 3)])
def test_noisy_shares_below_a_limit_do_not_divide(noise, limit):
    """Uses two standard deviations, or the share of equal branches, as the limit."""
    share = np.float32([0.7, 0.2, -0.01])  # Noise may make shares negative.
    (upload,) = uploads(1, share=lambda leaf: share, layers="dense")
    process = process_of(tff.aggregators.MeanFactory(), noise, layers="dense")
    found = run(process, [upload], WEIGHTS[:1]).result
    assert_close(found, times(share / np.maximum(share, limit), upload.value))


@pytest.mark.parametrize("noise", [0.05, 0.9])
def test_limit_is_relative_to_the_largest_norm_of_shares(noise):
    """Uses two tensors, with the norm sqrt(2), one of which is a scalar."""
    ones = {"w": tf.ones([4]), "v": tf.ones([])}
    sums = Shares(ones, {"w": tf.constant([0.5, 0.2, 0.1, 0.0]), "v": tf.constant(0.2)})
    found, limit = mean_of_sums(sums, noise), 2 * noise * np.sqrt(2)
    w = 1 / np.maximum([0.5, 0.2, 0.1, 0.0], min(limit, 1 / 4))
    np.testing.assert_allclose(found["w"], w, rtol=1e-6)
    np.testing.assert_allclose(found["v"], 1 / max(0.2, min(limit, 1)), rtol=1e-6)


@pytest.mark.thorough
def test_secure_sums_give_the_same_mean():
    sum_ = tff.aggregators.SecureSumFactory(64.0, -64.0)
    secure = process_of(tff.aggregators.MeanFactory(sum_, sum_), layers="dense")
    tff.test.assert_not_contains_unsecure_aggregation(secure.next)
    tff.test.assert_contains_secure_aggregation(secure.next)
    found = run(secure, uploads(layers="dense")).result
    assert_close(found, mean(uploads(layers="dense")), tolerance=1e-5)
