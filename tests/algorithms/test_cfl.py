"""Tests CFL: its limit FedAvg, and its splits on quadratics against NumPy."""

import dataclasses

import numpy as np
import pytest
import scipy.cluster.hierarchy
import scipy.spatial.distance
import tensorflow as tf
import tensorflow_federated as tff

from tests.algorithms.rounds import QUADRATIC, START, as_rows, each_round, personal
from tests.federation import assert_close, assert_equal, local_sgd, make_client, traced, trained
from tests.quadratics import descended, objectives, quadratic_examples, weights_of
from tff_pfl.aggregators import Stack
from tff_pfl.algorithms.cfl import CflServer, OwnUpdate
from tff_pfl.local import LocalTraining, trees

N, RATE, STEPS, SEED = 9, 0.3, 2, 2
A, C = objectives(N)
# Client i is near the centre of the number i % 3; two of the centres are near one another.
CENTRES = np.array([[6.0, 0.0, 0.0], [-6.0, 3.0, 0.0], [-6.0, -3.0, 0.0]])
C = [CENTRES[i % 3] + 0.3 * c for i, c in enumerate(C)]
COPIES = (1, 3, 2, 1, 2, 3, 1, 1, 2)  # of each client's only example, all in one batch
FEW, ALL = (5, 1, 2, 3, 4, 0), tuple(range(N))
# Clients 6, 7 and 8 are not in the cohorts of the first splits.
COHORTS = (FEW, FEW, FEW, (6, 7, 1, 2, 0), (1, 2, 4, 5, 8), (6, 7, 8, 0), ALL, ALL)


@pytest.mark.thorough
@pytest.mark.parametrize("options", [{"eps_1": 0.0}, {"max_clusters": 1, "eps_1": 1e3}])
def test_without_splits_it_is_fedavg(options):
    local = LocalTraining(
        tff.learning.optimizers.build_sgdm(0.3, momentum=0.5),
        epochs=2,
        batch_size=4,
        persist_optimizer_state=True,
    )
    found = trained("cfl", local=local, num_clients=3, eps_2=0.0, **options)
    expected = trained("fedavg", local=local, weighting="uniform")
    assert_close(trees.row(found.state.algorithm.models, 0), expected.shared, 1e-6)
    assert_close(found.client_states, expected.client_states, 1e-6)
    assert_close(found.personal, expected.personal, 1e-6)


class Node:
    """A node of the tree, with the units of the updates for which it was made."""

    def __init__(self, model, units):
        self.model, self.units, self.children = model, units, None


@dataclasses.dataclass
class Reference:
    """CFL's server in NumPy, with names of options as in `cfl`."""

    max_clusters: int = 4
    eps_1: float = 0.4
    eps_2: float = 1.6
    gamma: float = 0.0
    linkage: str = "single"
    min_members: int = 2
    first_round: int = 0
    weighting: str = "uniform"

    def __post_init__(self):
        self.nodes, self.of = [Node(START, np.zeros((1, 3)))], np.zeros(N, int)

    def next(self, cohort, round_num):
        updates = {}
        for i in cohort:
            w = self.nodes[self.of[i]].model
            updates[i] = descended(w, A[i], C[i], RATE, STEPS) - w
        units = {i: u / np.linalg.norm(u) for i, u in updates.items()}
        at_split = {i for i in cohort if self.nodes[self.of[i]].children}
        self.norms = (0.0, 0.0)
        for number in range(len(self.nodes)):
            members = [i for i in sorted(cohort) if self.of[i] == number and i not in at_split]
            if not members:
                continue
            norms = (
                np.linalg.norm(self.mean(updates, members)),
                max(np.linalg.norm(updates[i]) for i in members),
            )
            self.norms = max(self.norms, norms, key=lambda pair: pair[1])
            if self.is_split(members, norms, units, round_num):
                first, second = self.parts(members, units)
                node = self.nodes[number]
                node.children = len(self.nodes), len(self.nodes) + 1
                for child, part in zip(node.children, (first, second), strict=True):
                    self.nodes.append(Node(node.model, np.array([units[i] for i in part])))
                    self.of[part] = child
        for i in at_split:
            children = self.nodes[self.of[i]].children
            cosines = [np.mean(self.nodes[child].units @ units[i]) for child in children]
            self.of[i] = children[int(np.argmax(cosines))]
        for number, node in enumerate(self.nodes):
            members = [i for i in cohort if self.of[i] == number and i not in at_split]
            if members:
                node.model = node.model + self.mean(updates, members)
        return len(at_split)

    def mean(self, updates, members):
        weights = [COPIES[i] if self.weighting == "num_examples" else 1 for i in members]
        return np.average([updates[i] for i in members], axis=0, weights=weights)

    def is_split(self, members, norms, units, round_num):
        if len(members) < self.min_members or round_num < self.first_round:
            return False
        if not (norms[0] < self.eps_1 and norms[1] > self.eps_2):
            return False
        first, second = self.parts(members, units)
        alpha = max(units[i] @ units[j] for i in first for j in second)
        is_room = len(self.nodes) < 2 * self.max_clusters - 1
        return is_room and np.sqrt((1 - alpha) / 2) > self.gamma

    def parts(self, members, units):
        distances = scipy.spatial.distance.pdist([units[i] for i in members], "cosine")
        tree = scipy.cluster.hierarchy.linkage(distances, self.linkage)
        labels = scipy.cluster.hierarchy.cut_tree(tree, n_clusters=2)[:, 0]
        members = np.array(members)
        return members[labels == labels[0]], members[labels != labels[0]]


EAGER = {"eps_1": 3.0, "eps_2": 0.5}  # two clusters are split in the second round


@pytest.mark.thorough_but_one
@pytest.mark.parametrize(
    ("options", "num_clusters", "num_at_splits"),
    [
        ({}, 3, 5),
        ({"weighting": "num_examples", **EAGER}, 4, 6),
        ({"max_clusters": 3, **EAGER}, 3, 4),
        ({"linkage": "complete", "min_members": 7, "first_round": 4, "eps_1": 1.0}, 2, 0),
        ({"gamma": 0.9}, 1, 0),
    ],
    ids=str,
)
def test_rounds_agree_with_numpy(options, num_clusters, num_at_splits):
    """Covers personal models, and clients that were absent when their cluster was split."""
    local = local_sgd(RATE, STEPS, max(COPIES))
    process = traced("cfl", QUADRATIC, local, num_clients=N, seed=SEED, **options)
    examples = [quadratic_examples(a, c, copies=n) for a, c, n in zip(A, C, COPIES, strict=True)]
    clients = [make_client(process, i, its) for i, its in enumerate(examples)]
    expected = Reference(**options)
    for round_num, it in enumerate(each_round(process, clients, COHORTS)):
        num_at_split = expected.next(it.cohort, round_num)
        models = np.array([node.model for node in expected.nodes])
        found = it.state.algorithm
        assert_close(as_rows(found.models)[: len(models)], models)
        directions = [np.mean(node.units, axis=0) for node in expected.nodes]
        assert_close(as_rows(found.directions)[: len(models)], np.array(directions))
        assert_equal(process.snapshot(it.state)["node"], expected.of)
        assert_close(personal(process, it.state, it.clients), list(models[expected.of]))
        metrics = it.metrics["train"]["server"]
        assert metrics["num_clusters"] == (len(models) + 1) // 2
        assert metrics["num_at_splits"] == num_at_split
        assert_close([metrics["mean_norm"], metrics["max_norm"]], expected.norms)
        num_at_splits -= num_at_split
    assert (len(set(expected.of)), num_at_splits) == (num_clusters, 0)


def test_linkage_decides_on_the_parts():
    """The updates of six clients have these angles, of which single linkage cuts the widest."""
    angles = np.deg2rad([0, 28, 60, 85, 120, 165])
    updates = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    stack = stack_of([weights_of(update, 2, 1) for update in updates])
    for linkage, expected in (("single", [1, 1, 1, 1, 1, 2]), ("complete", [1, 1, 1, 1, 2, 2])):
        server = CflServer(6, 2, 1e3, 0.0, 0.0, linkage, 2, 0)
        state, _ = server.finalize(server.init(weights_of(START, 2, 1)), stack, 0)
        assert state.node.numpy().tolist() == expected


def stack_of(updates):
    number = len(updates)
    return Stack(OwnUpdate(tf.range(number), trees.stack(updates)), tf.ones([number]))


def test_moving_statistics_do_not_count_in_norms():
    def update(kernel, mean):
        head, norm = {"kernel": tf.constant([kernel])}, {"moving_mean": tf.constant([mean])}
        return {"head": head, "norm": norm}

    server = CflServer(2, 2, 0.1, 0.9, 0.0, "single", 2, 0)
    stack = stack_of([update(1.0, 7.0), update(-1.0, 5.0)])
    state, metrics = server.finalize(server.init(update(0.0, 0.0)), stack, 0)
    assert (metrics["mean_norm"], metrics["max_norm"]) == (0.0, 1.0)
    assert state.node.numpy().tolist() == [1, 2]
    assert_close(state.models["norm"]["moving_mean"], np.array([[0.0], [7.0], [5.0]]))
    assert_equal(state.directions["norm"]["moving_mean"], np.zeros((3, 1)))
