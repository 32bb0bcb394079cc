"""Cases of the containers of arguments and results, and of their matching."""

import collections
from typing import Any, NamedTuple

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.runtime.conformance.cases import Cases, Run, at_clients, at_server, mapped

case = Cases()


class Named(NamedTuple):
    b: Any
    a: Any


@attrs.define
class Attrs:
    b: Any
    a: Any


def with_container(*elements, container) -> tff.types.StructWithPythonType:
    return tff.types.StructWithPythonType(elements, container)


NAMED_ELEMENTS = [("b", np.float32), ("a", np.int32)]
VALUE = (np.float32(1.5), np.int32(2))
DICT = {"b": VALUE[0], "a": VALUE[1]}
ORDERED = collections.OrderedDict(DICT)
STRUCTS = {
    "tuple": ((np.float32, np.int32), VALUE, VALUE),
    "list": ([np.float32, np.int32], list(VALUE), list(VALUE)),
    "ordered_dict": (collections.OrderedDict(NAMED_ELEMENTS), ORDERED, ORDERED),
    "dict": (with_container(*NAMED_ELEMENTS, container=dict), DICT, DICT),
    "named_tuple": (with_container(*NAMED_ELEMENTS, container=Named), Named(*VALUE), Named(*VALUE)),
    "attrs": (with_container(*NAMED_ELEMENTS, container=Attrs), Attrs(*VALUE), Attrs(*VALUE)),
    "no_container": (tff.types.StructType([np.float32, np.int32]), VALUE, VALUE),
    "other_names": (
        collections.OrderedDict(NAMED_ELEMENTS),
        collections.OrderedDict(x=VALUE[0], y=VALUE[1]),
        ORDERED,
    ),
    "empty_list": ([], [], []),
    "empty_without_container": (tff.types.StructType([]), (), ()),
    "nested": (
        collections.OrderedDict(c=(np.float32, [np.int32, ()]), a=Named(np.str_, (np.bool_,))),
        collections.OrderedDict(c=(1.5, [2, ()]), a=Named("x", (True,))),
        collections.OrderedDict(
            c=(np.float32(1.5), [np.int32(2), ()]), a=Named(b"x", (np.bool_(True),))
        ),
    ),
}


@case(fast=["list", "attrs", "other_names", "nested"], name=list(STRUCTS))
def struct(name):
    """Passes a struct at all placements, and maps it by TensorFlow."""
    type_signature, value, gives = STRUCTS[name]
    function = mapped(lambda x: x, type_signature)

    @tff.federated_computation(
        type_signature, at_server(type_signature), at_clients(type_signature)
    )
    def everywhere(unplaced, server, clients):
        return unplaced, server, clients, function(clients)

    expected = (gives, gives, [gives], [gives])
    return Run(everywhere, value, value, [value], gives=expected)


@case(fast=True)
def struct_with_all_empty_members():
    function = mapped(lambda x: {"n": (), "m": [(), ()]}, np.float32)
    return Run(function, [1.0, 2.0], gives=[{"n": (), "m": [(), ()]}] * 2)


@case(fast=True)
def struct_that_tensorflow_returns():
    def function(x):
        named = Named(b=x, a=tf.cast(x, tf.int32))
        return collections.OrderedDict(z=[x, x + 1], b=(named, {"q": x}), a=Attrs(x, 3), n=())

    gives = collections.OrderedDict(
        z=[np.float32(1.5), np.float32(2.5)],
        b=(Named(np.float32(1.5), np.int32(1)), {"q": np.float32(1.5)}),
        a=Attrs(np.float32(1.5), np.int32(3)),
        n=(),
    )
    return Run(mapped(function, np.float32), [1.5], gives=[gives])


@case(fast=True)
def struct_argument_of_placements():
    type_signature = collections.OrderedDict(
        c=at_clients(np.float32), b=[at_server(np.int32), np.str_], a=(at_clients(np.int32),)
    )

    @tff.federated_computation(type_signature)
    def function(x):
        return tff.federated_sum(x.c), x.b, tff.federated_zip((x.c, x.a[0]))

    value = collections.OrderedDict(c=[1.0, 2.0], b=[3, "x"], a=([4, 5],))
    pairs = [(np.float32(1), np.int32(4)), (np.float32(2), np.int32(5))]
    return Run(function, value, gives=(np.float32(3), [np.int32(3), b"x"], pairs))


@case(fast=True)
def struct_selections():
    type_signature = collections.OrderedDict(c=(np.float32, Named(np.int32, np.str_)), a=np.bool_)

    @tff.federated_computation(at_clients(type_signature), at_server(type_signature))
    def function(clients, server):
        return clients.c[1].a, clients.a, server.c[0], [server.c[1]]

    value = collections.OrderedDict(c=(1.5, Named(2, "x")), a=True)
    gives = ([b"x"], [np.bool_(True)], np.float32(1.5), [Named(np.int32(2), b"x")])
    return Run(function, [value], value, gives=gives)
