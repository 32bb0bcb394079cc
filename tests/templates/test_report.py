"""Tests how the report of a round is sent: by secure sums, in the clear, or not at all."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.compiler import tree_analysis

from tests.federation import assert_close, assert_equal
from tests.marks import slow
from tests.templates.mean_process import clients, compose, examples, mean_exchange
from tff_pfl.models import Mean
from tff_pfl.templates import ClientOutput, errors
from tff_pfl.templates.exchange import keep_server_state

pytestmark = pytest.mark.usefixtures("clients_in_a_loop")

SECURE_SUM = tff.aggregators.SecureSumFactory(64.0, -64.0)
SECURE_MEAN = tff.aggregators.MeanFactory(SECURE_SUM, SECURE_SUM)
DATA = examples(1.0, 2.0, 3.0), examples(), examples(np.nan), examples(6.0)
COUNTS = {"num_clients": 2, "num_examples": 4, "num_nonfinite": 1, "num_empty": 1}


def exchange(aggregator=SECURE_MEAN, **options):
    return mean_exchange(aggregator=aggregator, **options)


def first_round(process, *data):
    return process.next(process.initialize(), clients(process, *data or DATA))


@pytest.fixture(scope="module")
def secure():
    return compose(exchange())


@pytest.fixture(scope="module")
def silent():
    return compose(mean_exchange(), report="none")


class TestSecure:
    """Tests secure reports, the default if all uploads are summed securely."""

    @pytest.mark.thorough
    def test_process_knows_how_it_reports(self, secure, silent):
        assert (secure.algorithm.report, silent.algorithm.report) == ("secure", "none")
        assert compose(mean_exchange()).algorithm.report == "clear"

    @pytest.mark.thorough
    def test_nothing_is_aggregated_in_the_clear(self, secure):
        tff.test.assert_not_contains_unsecure_aggregation(secure.next)
        tff.test.assert_contains_secure_aggregation(secure.next)

    @pytest.mark.thorough
    def test_round_agrees_with_sums_in_the_clear(self, secure):
        found, expected = first_round(secure), first_round(compose(mean_exchange()))
        assert_close(found.state.algorithm, expected.state.algorithm, tolerance=1e-6)
        assert_equal(found.clients, expected.clients)
        metrics = found.metrics["train"]
        assert {name: metrics[name] for name in COUNTS} == COUNTS
        assert metrics["value"] == pytest.approx(3.0, abs=1e-3)
        assert metrics["server_kept"] == 0

    @pytest.mark.parametrize(
        ("totals", "expected"),
        [
            slow((0.3, 2e6, np.int32(-7)), (0.3, 2**20, -7)),
            slow((0.3, -1e5, 2e6, np.int32(7), np.float64(1.5)), (0.3, -1e5, 2**20, 7, 1.5)),
        ],
        ids=["three", "five"],
    )
    def test_totals_are_rounded_and_clipped(self, totals, expected):
        def client_work(server, state, data, context):
            sums = {str(i): Mean(total, 1.0) for i, total in enumerate(totals)}
            return ClientOutput(state=state, upload=server, metrics=sums)

        output = first_round(compose(exchange(client_work=client_work)), examples(1.0))
        found = [output.metrics["train"][str(i)] for i in range(len(totals))]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=2**-11)

    @pytest.mark.thorough
    def test_bytes_include_the_report(self, secure, silent):
        """The report has four counts, a total and its denominator."""
        sent = [first_round(process).metrics["bytes_up_per_client"] for process in (secure, silent)]
        assert sent == [12 + 24, 12]


class TestClear:
    """Tests reports in the clear, the default if an upload is in the clear."""

    @pytest.mark.thorough
    def test_one_upload_in_the_clear_suffices(self):
        process = compose(exchange(), mean_exchange(name="second"))
        clear = calls(process.next, "federated_sum")
        assert len(clear) == 2 + 2  # two reports; value and weight of an upload
        assert first_round(process).metrics["train"]["num_clients"] == 2

    def test_report_without_uploads_is_in_the_clear(self):
        def client_work(server, state, data, context):
            return ClientOutput(state=state)

        process = compose(mean_exchange(client_work=client_work, finalize=keep_server_state))
        assert len(calls(process.next, "federated_sum")) == 1


class TestNone:
    def test_metrics_are_only_from_the_server(self, silent):
        output = first_round(silent)
        assert_equal(output.state.algorithm, np.float32([3.0, 3.0]))
        change = pytest.approx(np.sqrt(5.0), rel=1e-6)
        assert output.metrics["train"] == {"server_kept": 0, "server": {"change": change}}

    def test_only_uploads_are_aggregated(self, silent):
        assert len(calls(silent.next, "federated_sum")) == 2  # value and weight
        assert not calls(silent.next, "federated_aggregate")  # which would collect client ids

    def test_mean_of_no_clients_is_not_used(self, silent):
        output = first_round(silent, examples(), examples(np.nan))
        assert_equal(output.state.algorithm, silent.initialize().algorithm)
        assert output.metrics["train"]["server_kept"] == 1


def showing(show):
    """Makes a secure sum of uploads, of which the server also sees another aggregate."""
    return tff.aggregators.add_measurements(
        SECURE_SUM, client_measurement_fn=lambda values: collections.OrderedDict(seen=show(values))
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    "aggregator",
    [tff.aggregators.MeanFactory(), showing(tff.federated_sum), showing(tff.federated_min)],
    ids=["mean", "sum", "minimum"],
)
def test_secure_report_with_uploads_in_the_clear_raises(aggregator):
    message = "report='secure', but exchange 'second' aggregates uploads in the clear"
    with pytest.raises(errors.AggregatorError, match=message):
        compose(exchange(), exchange(aggregator, name="second"), report="secure")


def calls(computation, intrinsic):
    """Returns the calls of an intrinsic in a computation."""
    found = tree_analysis.find_unsecure_aggregation_in_tree(computation.to_building_block())
    return [call for call in found if call.function.uri == intrinsic]
