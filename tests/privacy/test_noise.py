"""Tests clipping and noise: the influence of a client, and the draws of the noise."""

import functools

import numpy as np
import pytest
import scipy.stats
import tensorflow_federated as tff

from tests.federation import assert_close, assert_equal, vector
from tests.marks import slow
from tff_pfl.privacy import adaptive_clipping, fixed_clipping, noise_of_mean

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

TYPE = tff.types.to_type([tff.types.TensorType(np.float32, [500]), np.float32])
CLIENTS, NORM = 4, 0.5
CLIPPINGS = {"fixed": fixed_clipping, "adaptive": adaptive_clipping}
each_seed = pytest.mark.parametrize("seed", [1, slow(None)])
each_clipping = pytest.mark.parametrize("clipping", CLIPPINGS)


@functools.cache
def process_of(clipping, noise_multiplier, seed=1, clients_per_round=CLIENTS):
    factory = CLIPPINGS[clipping](noise_multiplier, clients_per_round, NORM, seed)
    return factory.create(TYPE)


@functools.cache
def tff_process_of(clipping, noise_multiplier):
    """Returns TFF's process of the same name."""
    factory = getattr(tff.aggregators.DifferentiallyPrivateFactory, f"gaussian_{clipping}")
    return factory(noise_multiplier, float(CLIENTS), NORM).create(TYPE)


def uploads(scale=1.0, number=CLIENTS, seed=0):
    rng = np.random.default_rng(seed)
    return [
        [np.float32(rng.normal(scale=s, size=500)), np.float32(rng.normal(scale=s))]
        for s in scale * 10.0 ** rng.uniform(-4, 1, size=number)
    ]


def rounds(process, *cohorts):
    """Returns the outputs of consecutive rounds."""
    state, outputs = process.initialize(), []
    for cohort in cohorts:
        outputs.append(process.next(state, cohort))
        state = outputs[-1].state
    return outputs


def noise_of_rounds(process, number=1):
    """Returns the noise of several rounds: the results if clients send zeros."""
    zeros = [[np.zeros(500, np.float32), np.float32(0)]] * CLIENTS
    return [vector(output.result) for output in rounds(process, *[zeros] * number)]


@pytest.mark.parametrize("seed", range(2))
def test_client_moves_the_mean_by_at_most_the_clipping_norm(seed):
    process = process_of("fixed", 0.0)
    cohort = uploads(seed=seed)
    (with_all,), (without,) = (rounds(process, clients) for clients in (cohort, cohort[1:]))
    moved = CLIENTS * (vector(with_all.result) - vector(without.result))
    assert np.linalg.norm(moved) <= NORM * (1 + 1e-5)
    upload = vector(cohort[0])
    clipped = upload * min(1.0, NORM / np.linalg.norm(upload))
    np.testing.assert_allclose(moved, clipped, atol=1e-5)


@pytest.mark.thorough
@each_seed
@pytest.mark.parametrize("secure", [False, slow(True)])
@each_clipping
def test_client_whose_norm_overflows_float32_is_clipped(clipping, secure, seed):
    process = CLIPPINGS[clipping](0.0, CLIENTS, NORM, seed, secure=secure).create(TYPE)
    cohort = uploads(1e-4)  # These uploads are too short to be clipped.
    cohort[0] = [np.full(500, 2e37, np.float32), np.float32(-1e38)]
    long = [np.full(500, 2.0, np.float32), np.float32(-10.0)]
    cohorts = (cohort, cohort[1:], [long, *cohort[1:]])
    (with_all,), (without,), (with_long,) = (rounds(process, clients) for clients in cohorts)
    moved = CLIENTS * (vector(with_all.result) - vector(without.result))
    direction = np.append(np.full(500, 2.0), -10.0)
    expected = NORM * direction / np.linalg.norm(direction)
    np.testing.assert_allclose(moved, expected, atol=1e-3 if secure else 1e-6)
    assert_equal(with_all.state, with_long.state)  # It counts as a clipped upload.


@pytest.mark.thorough
@pytest.mark.parametrize("fall", [slow(1e-4), 1e-8])
def test_secure_sums_round_relative_to_the_current_clipping_norm(fall):
    """Prevents steps of the first norm, which would move the sum by too much or not at all."""
    type_ = tff.types.TensorType(np.float32, [100_000])
    process = adaptive_clipping(0.0, 1, NORM, 1, secure=True).create(type_)
    state = process.initialize()
    query = state.query_state.numerator_state
    norm = query.sum_state._replace(l2_norm_clip=np.float32(fall * NORM))
    fallen = state.query_state._replace(numerator_state=query._replace(sum_state=norm))
    upload = np.ones([100_000], np.float32)
    moved = process.next(state._replace(query_state=fallen), [upload]).result
    assert np.linalg.norm(np.float64(moved)) == pytest.approx(fall * NORM, rel=1e-6)


@pytest.mark.thorough
@each_seed
@each_clipping
def test_without_noise_means_equal_tffs(clipping, seed):
    cohorts = [uploads(seed=seed) for seed in range(3)]
    expected = rounds(tff_process_of(clipping, 0.0), *cohorts)
    found = rounds(process_of(clipping, 0.0, seed), *cohorts)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours.result, theirs.result)
        assert_close(ours.measurements, theirs.measurements)
    if clipping == "adaptive":
        norms = [output.measurements["dp_query_metrics"]["clip"] for output in found]
        assert len(set(map(float, norms))) > 1


@pytest.mark.thorough
@pytest.mark.parametrize("clipping", ["adaptive", slow("fixed")])
def test_secure_sums_change_results_only_by_quantization(clipping):
    secure = CLIPPINGS[clipping](0.3, CLIENTS, NORM, 1, secure=True).create(TYPE)
    tff.test.assert_not_contains_unsecure_aggregation(secure.next)
    cohorts = [uploads(seed=seed) for seed in range(2)]
    found, expected = (rounds(one, *cohorts) for one in (secure, process_of(clipping, 0.3)))
    for with_secure_sums, without in zip(found, expected, strict=True):
        assert_close(with_secure_sums.result, without.result)
        # The measurements have no additional count of clients, which would lack noise.
        assert_close(with_secure_sums.measurements, without.measurements)


@pytest.mark.thorough
@each_clipping
def test_noise_is_gaussian_with_the_given_deviation(clipping):
    z = 0.3
    (noise,) = noise_of_rounds(process_of(clipping, z))
    deviation = (z if clipping == "fixed" else noise_of_mean(z, CLIENTS)) * NORM / CLIENTS
    assert scipy.stats.kstest(noise / deviation, "norm").pvalue > 0.01


def test_noise_of_mean_and_count_adds_up_to_the_multiplier():
    """Uses a count of plus or minus one half, whose noise multiplier is twice its deviation."""
    mean_noise, count_noise = noise_of_mean(1.5, 100), 2 * 0.05 * 100
    assert (mean_noise**-2 + count_noise**-2) ** -0.5 == pytest.approx(1.5)
    assert noise_of_mean(0.0, 100) == 0.0
    with pytest.raises(
        ValueError, match=r"must be below 0.1 \* clients_per_round = 5 .* got 10\. Set clipping"
    ):
        noise_of_mean(10, 50)  # The root would be a complex number.


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, slow(None)])
@pytest.mark.parametrize("clipping", ["adaptive", slow("fixed")])
def test_dp_event_equals_tffs(clipping, seed):
    """Compares the event that TFF's accounting reads from the aggregator's state."""
    found, expected = (
        rounds(process, uploads())[-1].state.dp_event
        for process in (process_of(clipping, 0.3, seed), tff_process_of(clipping, 0.3))
    )
    assert str(found) == str(expected)


@pytest.mark.thorough
@each_clipping
def test_noise_is_a_function_of_the_seed_and_the_round(clipping):
    first, second = noise_of_rounds(process_of(clipping, 0.3), number=2)
    again = noise_of_rounds(process_of(clipping, 0.3), number=2)
    assert_equal([first, second], again)
    assert np.abs(np.corrcoef(first, second)[0, 1]) < 0.2
    (other,) = noise_of_rounds(process_of(clipping, 0.3, seed=2))
    assert np.abs(np.corrcoef(first, other)[0, 1]) < 0.2


def test_noise_does_not_depend_on_uploads():
    cohort = uploads()
    (plain,), (noisy,) = (rounds(process_of("fixed", z), cohort) for z in (0.0, 0.3))
    (noise,) = noise_of_rounds(process_of("fixed", 0.3))
    np.testing.assert_allclose(vector(noisy.result) - vector(plain.result), noise, atol=1e-6)


def test_leaves_of_an_upload_have_independent_noise():
    type_ = tff.types.to_type([tff.types.TensorType(np.float32, [500])] * 2)
    process = fixed_clipping(1.0, 1, 1.0, seed=1).create(type_)
    zeros = [np.zeros(500, np.float32)] * 2
    a, b = process.next(process.initialize(), [zeros]).result
    assert np.abs(np.corrcoef(a, b)[0, 1]) < 0.2
