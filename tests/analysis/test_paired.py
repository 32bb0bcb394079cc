"""Tests the paired test on data with a known difference, and the pairing of clients."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tests.analysis.hand_written import write_run
from tff_pfl.analysis import client_values, paired_test, read
from tff_pfl.analysis.paired import against, gains, holm
from tff_pfl.evaluation import differences
from tff_pfl.experiment import OutputDirectoryError

ACCURACY = "personalized/local_test/accuracy"


def drawn(rng, num_seeds, mean=0.0):
    """Draws heavy-tailed differences of 30 clients; clients of a seed share a random shift."""
    shift = rng.normal(mean, 0.02, size=(num_seeds, 1))
    return list(shift + 0.05 * rng.standard_t(4, size=(num_seeds, 30)))


def test_p_values_are_uniform_without_a_difference():
    rng = np.random.default_rng(2)
    found = [paired_test(drawn(rng, 2)).p_value for _ in range(300)]
    assert stats.kstest(found, "uniform").pvalue > 0.01


def test_intervals_contain_a_known_difference_with_their_confidence():
    rng = np.random.default_rng(15)
    tests = [paired_test(drawn(rng, 5, mean=0.1)) for _ in range(300)]
    assert np.mean([test.difference for test in tests]) == pytest.approx(0.1, abs=0.005)
    assert 0.91 < np.mean([test.low < 0.1 < test.high for test in tests]) < 0.99
    assert np.mean([test.p_value < 0.05 for test in tests]) > 0.99
    for test in tests:
        assert (test.p_value < 0.05) == (test.low > 0 or test.high < 0)


def test_numbers_agree_with_students_t():
    differences = [np.array([0.1, 0.3]), np.array([0.0, 0.2]), np.array([-0.1, 0.4, 0.6])]
    test = paired_test(differences)
    # The means of the seeds are 0.2, 0.1 and 0.3. The quantile is for 2 degrees of freedom.
    half = 4.302653 * 0.1 / np.sqrt(3)
    assert test.difference == pytest.approx(0.2)
    assert (test.low, test.high) == pytest.approx((0.2 - half, 0.2 + half))
    assert test.p_value == pytest.approx(stats.ttest_rel([0.2, 0.1, 0.3], np.zeros(3)).pvalue)
    assert (test.num_seeds, test.share_worse) == (3, 1 / 7)
    test = paired_test(differences, better=-1)
    assert (test.share_worse, test.share_better) == (5 / 7, 1 / 7)  # one is 0


def test_rounding_errors_count_as_no_difference():
    # In floats, .2 - .1 + .5 - .6 is 8e-17. All three seeds have the same mean.
    own, others = np.array([0.2, 0.5, 0.5]), np.array([0.1, 0.5, 0.6])
    test = paired_test([differences(own, others, 1)] * 3)
    assert (test.difference, test.low, test.high, test.p_value) == (0, 0, 0, 1)
    late = np.array([0.1 + 0.2 + 0.3, 0.5]) / [3, 1], np.array([0.3 + 0.2 + 0.1, 0.5]) / [3, 1]
    assert (late[0] != late[1]).any()
    np.testing.assert_array_equal(differences(*late, 1), 0.0)
    shifted = paired_test([0.01 + np.array([-0.1, 0.1]), 0.01 + np.array([-0.3, 0.3])])
    assert shifted.difference == pytest.approx(0.01)
    assert shifted.p_value == 0.0
    assert differences(np.array([np.inf]), np.array([1.0]), 1) == np.inf


def test_degenerate_differences_have_defined_results():
    one = paired_test([np.array([0.1, 0.3])])
    assert one.difference == pytest.approx(0.2)
    assert np.isnan([one.low, one.high, one.p_value]).all()
    shifted = paired_test([np.full(4, 0.5), np.full(4, 0.5)])
    assert (shifted.low, shifted.high, shifted.p_value) == (0.5, 0.5, 0)
    assert np.isnan(paired_test([np.array([np.nan]), np.zeros(1)]).p_value)


def test_corrected_p_values_agree_with_holms_paper():
    """Uses factors of 3, 2 and 1 from the smallest p value on; none may be below one before it."""
    found = holm(pd.Series({"a": 0.061, "b": 0.03, "diverged": np.nan, "c": 0.003}))
    np.testing.assert_allclose(found[["a", "b", "c"]], [0.061, 0.06, 0.009])
    assert np.isnan(found["diverged"])
    np.testing.assert_allclose(holm(pd.Series([0.04, 0.02, 0.03])), 0.06)
    np.testing.assert_allclose(holm(pd.Series([0.7, 0.6])), 1.0)


@pytest.fixture
def runs(tmp_path):
    def write(name, seed, *accuracies):
        return write_run(tmp_path / name, accuracies, seed=seed)

    a = [write("a0", 0, 0.5, 0.75, 1.0), write("a1", 1, 0.5, 0.5, 0.5)]
    b = [write("b1", 1, 0.5, 0.25, 1.0), write("b2", 2, 0.0, 0.0, 0.0)]
    return read({"a": a, "b": b})


def test_clients_of_a_seed_are_compared_with_themselves(runs):
    pairs = against(client_values(runs, ACCURACY), "b")  # both have seed 1
    np.testing.assert_array_equal(pairs["own"] - pairs["local"], [0.0, 0.25, -0.5])
    # The mean of rounds 5 and 10. The accuracies at round 5 are half as large.
    late = against(client_values(runs, ACCURACY, "late_mean"), "b")
    np.testing.assert_array_equal(late["own"] - late["local"], [0.0, 0.1875, -0.375])
    found = gains(late, better=-1).loc["a"]  # less is better
    assert found["gain"] == pytest.approx(0.0625) and found["helped"] == pytest.approx(1 / 3)


def test_seeds_that_repeat_one_run_count_once(tmp_path, caplog):
    """Without it, p would be 1e-9 for three repetitions of a difference that one run has."""
    rng, runs = np.random.default_rng(0), {}
    for label, own in (("a", rng.uniform(size=6)), ("b", rng.uniform(size=6))):
        noise = 1e-8 * rng.normal(size=(3, 6))
        runs[label] = [
            write_run(tmp_path / f"{label}{seed}", own + noise[seed], seed=seed)
            for seed in range(3)
        ]
    with caplog.at_level("WARNING"):
        found = gains(against(client_values(read(runs), ACCURACY), "b"), 1)
    assert "2 of the 3 seeds of a repeat another seed" in caplog.text
    assert np.isnan(found.loc["a", "p_value"])


def test_client_values_are_indexed_by_seed_and_id(runs):
    found = client_values(runs, ACCURACY)
    assert found.columns.tolist() == ["a", "b"]
    assert found.index.tolist() == [(seed, client) for seed in range(3) for client in range(3)]
    np.testing.assert_array_equal(found["a"], [0.5, 0.75, 1, 0.5, 0.5, 0.5, *[np.nan] * 3])
    np.testing.assert_array_equal(found["b"], [*[np.nan] * 3, 0.5, 0.25, 1, 0, 0, 0])


def test_different_clients_are_refused(runs):
    folders = runs.folders
    table = folders["b"][0] / "clients" / "round_000010.csv"
    whole = table.read_text()
    table.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(OutputDirectoryError, match="a1 and .*b1 have evaluated different clients"):
        client_values(read(folders), ACCURACY)
    write_run(folders["b"][0], [0.5, 0.25, 1.0], seed=1, first_row=1)
    with pytest.raises(OutputDirectoryError, match="a1 and .*b1 have different partitions"):
        client_values(read(folders), ACCURACY)
