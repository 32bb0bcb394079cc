"""Tests that parts are merged in one order, in any process."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tff_pfl.cluster.tree import folded


def pair(a, b):
    return f"({a} {b})"


@pytest.mark.parametrize(
    ("active", "expected"),
    [
        (range(4), "((0 1) (2 3))"),
        ([0, 2, 3], "(0 (2 3))"),
        ([1], "1"),
        ([3, 0], "(0 3)"),
    ],
)
def test_tree_has_the_order_of_the_parts(active, expected):
    nodes = {(1, part): str(part) for part in active}
    assert folded(nodes, active, 4, pair) == {(4, 0): expected}


def test_nobody_has_a_value():
    assert folded({}, [], 8, pair) == {}


def test_branches_are_merged_where_all_their_values_are():
    nodes = {(1, part): str(part) for part in (0, 1, 2)}
    assert folded(nodes, range(8), 8, pair) == {(2, 0): "(0 1)", (1, 2): "2"}


@given(
    active=st.sets(st.integers(0, 15), min_size=1),
    bounds=st.lists(st.integers(0, 16), max_size=5),
)
def test_rounding_does_not_depend_on_who_has_which_parts(active, bounds):
    values = np.random.default_rng(0).normal(size=16).astype(np.float32) ** 5
    nodes = {(1, part): values[part] for part in active}
    whole = folded(nodes, active, 16, np.add)
    edges = sorted({0, *bounds, 16})
    left = {}
    for first, last in zip(edges, edges[1:], strict=False):
        own = {key: value for key, value in nodes.items() if first <= key[1] < last}
        left |= folded(own, active, 16, np.add)
    assert folded(left, active, 16, np.add) == whole and list(whole) == [(16, 0)]
