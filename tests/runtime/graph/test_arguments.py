"""Where the graph runtime takes arguments, and gives results, that the stock runtime does not."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_pfl import runtime

STRUCT = collections.OrderedDict(b=np.float32, a=np.int32)


@pytest.fixture(autouse=True)
def graph_context():
    with tff.framework.get_context_stack().install(runtime.create_graph_context()):
        yield


def test_structures_are_matched_by_name_where_the_names_are_the_types():
    """The stock runtime matches by position alone, and mixes such structures up."""

    @tff.federated_computation(tff.types.FederatedType(STRUCT, tff.CLIENTS))
    def identity(values):
        return values

    assert identity([{"a": 1, "b": 2.5}]) == [collections.OrderedDict(b=2.5, a=1)]
    assert identity([{"x": 2.5, "y": 1}]) == [collections.OrderedDict(b=2.5, a=1)]
    assert identity([(2.5, 1)]) == [collections.OrderedDict(b=2.5, a=1)]
    with pytest.raises(TypeError, match="float32"):
        identity([(1, 2.5)])


def test_numpys_integers_are_integers():
    @tff.federated_computation(tff.types.FederatedType(STRUCT, tff.CLIENTS))
    def identity(values):
        return values

    assert identity([{"a": np.int64(7), "b": 2.5}]) == [collections.OrderedDict(b=2.5, a=7)]
    with pytest.raises(TypeError, match="int32"):
        identity([{"a": np.int64(2**31), "b": 2.5}])


def test_a_cohort_of_nobody_gives_an_empty_list():
    @tff.federated_computation(tff.types.FederatedType(np.float32, tff.CLIENTS))
    def identity(values):
        return values

    assert identity([]) == []


def test_a_value_that_is_equal_at_no_clients_is_an_error():
    @tff.federated_computation(tff.types.FederatedType(np.float32, tff.SERVER))
    def broadcast(value):
        return tff.federated_broadcast(value)

    with pytest.raises(ValueError, match="no data"):
        broadcast(1.0)
