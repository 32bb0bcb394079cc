"""Tests the selectors of clients, and the iterator that remembers earlier rounds for them."""

import copy
import dataclasses
import itertools
import types

import numpy as np
import pytest

from tests.clients.cohorts import make_source, run_rounds, train
from tests.marks import together
from tff_pfl.clients import (
    BySize,
    CohortIterator,
    History,
    KnownClients,
    Participation,
    PowerOfChoice,
    Selector,
    Uniform,
)
from tff_pfl.clients.availability import ByClass
from tff_pfl.drivers import ExamplesDataSource

IDS = np.array([2, 3, 5, 8])
LOSSES = {2: 0.5, 3: np.nan, 5: 2.0, 8: 2.0}


def known(sizes=(1, 2, 3, 4), losses=LOSSES):
    history = History.before_training(len(IDS))
    return KnownClients(
        IDS, np.array(sizes), *history, lambda ids: np.array([losses[i] for i in ids.tolist()])
    )


def rng(seed=0):
    return np.random.default_rng(seed)


@dataclasses.dataclass(frozen=True)
class LongestAgo(Selector):
    """A selector of the clients that have been absent for longest."""

    def __call__(self, clients, number, rng):
        order = np.lexsort((clients.client_ids, clients.last_round))
        return clients.client_ids[order[:number]]


@dataclasses.dataclass(frozen=True)
class Returns(Selector):
    """A selector that returns the given ids."""

    ids: tuple

    def __call__(self, clients, number, rng):
        return np.array(self.ids)


class TestSelectors:
    def test_uniform_selector_draws_the_default_cohorts(self):
        participation = Participation(over_selection=1.5)
        generator = np.random.default_rng([3, 7, 0xC0403])
        everybody = KnownClients(np.arange(40), *[np.ones(40)] * 3, None)
        drawn = Uniform()(everybody, 15, generator)
        found = participation.participants(3, 7, 40, 10)
        assert found.selected.tolist() == sorted(drawn.tolist())
        assert found.reported.tolist() == sorted(drawn[:10].tolist())

    def test_by_size_draws_successively_in_proportion_to_sizes(self, trials=4000):
        """Sums, over the orders of two draws, the probabilities p_i p_j / (1 - p_i)."""
        clients, generator = known(), rng()
        counts = dict.fromkeys(itertools.combinations(IDS.tolist(), 2), 0)
        for _ in range(trials):
            counts[tuple(sorted(BySize()(clients, 2, generator).tolist()))] += 1
        p = dict(zip(IDS.tolist(), np.array([1, 2, 3, 4]) / 10, strict=True))
        for (i, j), count in counts.items():
            probability = p[i] * p[j] / (1 - p[i]) + p[i] * p[j] / (1 - p[j])
            deviation = np.sqrt(trials * probability * (1 - probability))
            assert abs(count - trials * probability) < 4.5 * deviation

    def test_by_size_draws_clients_without_examples_last_and_uniformly(self):
        drawn = [BySize()(known((0, 2, 0, 4)), 3, rng(seed)).tolist() for seed in range(60)]
        assert all(set(ids[:2]) == {3, 8} for ids in drawn)
        assert {ids[2] for ids in drawn} == {2, 5}

    def test_power_of_choice_selects_the_largest_losses_with_ties_by_id(self):
        selector = PowerOfChoice(candidates=4)
        assert selector(known(), 3, rng()).tolist() == [5, 8, 2]  # a NaN comes last
        assert selector(known(losses=LOSSES | {3: np.inf}), 2, rng()).tolist() == [3, 5]

    def test_power_of_choice_draws_its_candidates_by_size(self):
        losses, choices = {2: 4.0, 3: 3.0, 5: 2.0, 8: 1.0}, set()
        for seed in range(60):
            drawn = BySize()(known(), 3, rng(seed))
            found = PowerOfChoice(candidates=3)(known(losses=losses), 2, rng(seed))
            assert found.tolist() == sorted(drawn.tolist(), key=losses.get)[:0:-1]
            as_many = PowerOfChoice(candidates=3)(known(), 3, rng(seed))
            assert set(as_many) == set(drawn)
            choices.add(tuple(found))
        assert choices == {(2, 3), (2, 5), (3, 5)}  # of three of the four clients


class TestParticipation:
    def test_selectors_choose_among_available_clients(self):
        rare = ByClass(probabilities=(0.5,))
        participation = Participation(
            selector=PowerOfChoice(candidates=40), availability=rare, over_selection=2.0
        )
        history = History.before_training(40)
        everybody = KnownClients(np.arange(40), np.ones(40), *history, lambda ids: ids * 1.0)
        for number in range(20):
            found = participation.participants(5, number, 40, 4, everybody)
            uniform = Participation(availability=rare).participants(5, number, 40, 4)
            assert found.available.tolist() == uniform.available.tolist()
            assert found.selected.tolist() == found.available[-8:].tolist()
            assert found.reported.tolist() == found.available[-4:].tolist()  # the largest losses

    @together("ids", [(1, 1), (1,), (1, 40), (1.0, 2.0), (1, -1)])
    def test_invalid_choices_are_refused(self, ids):
        everybody = KnownClients(np.arange(40), *[np.ones(40)] * 3, None)
        message = "Returns.* must return 2 distinct ids of the 40 available clients"
        with pytest.raises(ValueError, match=message):
            Participation(selector=Returns(ids)).participants(0, 0, 40, 2, everybody)

    def test_candidates_must_be_enough_for_the_selected_clients(self):
        participation = Participation(selector=PowerOfChoice(candidates=5), over_selection=1.5)
        participation.check(20, 3)
        with pytest.raises(ValueError, match="candidates=5, but 6 clients are .* Choose 6 or more"):
            participation.check(20, 4)

    @together(
        ("changes", "message"),
        [
            ({"report": "secure"}, "this process hides them"),
            ({"global_weights": None}, "the algorithm has no global model"),
        ],
    )
    def test_process_must_let_the_server_know_losses(self, changes, message):
        def process(report="clear", global_weights="weights"):
            algorithm = types.SimpleNamespace(report=report, noise_multiplier=None)
            return types.SimpleNamespace(algorithm=algorithm, global_weights=global_weights)

        participation = Participation(selector=PowerOfChoice(candidates=5))
        participation.check_process(process())
        Participation().check_process(process(**changes))
        with pytest.raises(ValueError, match=message):
            participation.check_process(process(**changes))

    def test_cohorts_of_selectors_are_no_function_of_the_round(self):
        source = make_source(participation=Participation(selector=BySize()))
        for draw in (
            lambda: source.participants(0, 3),
            ExamplesDataSource(source).iterator().select,
        ):
            with pytest.raises(ValueError, match="only `CohortIterator.select` can select its"):
                draw()


class TestIterator:
    def test_history_counts_rounds_of_the_cohort(self):
        before = History.before_training(4)
        history = before.after(0, np.array([1, 2])).after(3, np.array([2]))
        assert history.num_rounds.tolist() == [0, 1, 2, 0]
        assert history.last_round.tolist() == [-1, 0, 3, -1]
        assert before.num_rounds.tolist() == [0] * 4

    def test_selector_sees_earlier_rounds_and_sizes(self):
        source = make_source(participation=Participation(selector=LongestAgo()))
        cohorts = [[i for i, _ in clients] for clients in run_rounds(source.iterator(), 4)]
        assert cohorts == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 1, 9]]

    @pytest.mark.parametrize("selector", [LongestAgo(), BySize()])
    def test_resumed_iterator_continues_identically(self, selector):
        participation = Participation(selector=selector, dropout=(0.3,))
        expected = run_rounds(make_source(participation=participation).iterator(), 9)
        source = make_source(participation=participation)
        iterator = source.iterator()
        run_rounds(iterator, 4)
        buffer, copied = iterator.to_bytes(), copy.deepcopy(iterator)
        run_rounds(iterator, 1)
        assert copied.to_bytes() != iterator.to_bytes() != buffer
        resumed = CohortIterator.from_bytes(buffer)
        assert resumed.to_bytes() == buffer and resumed == copied != iterator
        assert run_rounds(resumed, 5) == expected[4:]

    def test_losses_choose_the_cohort(self):
        choice = Participation(selector=PowerOfChoice(candidates=10))
        iterator = make_source(participation=choice).iterator()
        with pytest.raises(ValueError, match="Call `select` with `losses`, which"):
            iterator.select(3)
        assert iterator.round_num == 0
        clients = iterator.select(3, losses=lambda ids: -((ids.astype(float) - 4.2) ** 2))
        assert [c.client_id for c in clients] == [3, 4, 5]

    @pytest.mark.parametrize("selector", [Uniform(), LongestAgo()])
    def test_caller_can_choose_the_cohort_of_a_round(self, selector):
        source = make_source(participation=Participation(selector=selector))
        iterator = source.iterator()
        for ids in ([7, 0, 4], [4]):
            clients = iterator.choose(ids)
            assert [c.client_id for c in clients] == iterator.cohort.tolist() == ids
            with pytest.raises(RuntimeError):
                iterator.choose([1])
            with pytest.raises(ValueError):
                iterator.update([])
            iterator.update(train(clients))
        assert iterator.round_num == 2 and iterator.participants is None
        assert [s["n"] for s in source.store.get([0, 4, 7, 1])] == [1, 2, 1, 0]
        resumed = CohortIterator.from_bytes(iterator.to_bytes())
        uniform = make_source().participants(2, 3).reported.tolist()
        expected = [1, 2, 3] if selector == LongestAgo() else uniform
        assert [c.client_id for c in resumed.select(3)] == expected
        with pytest.raises(ValueError, match="twice"):
            source.iterator().choose([1, 1])
