"""Cases of TensorFlow in a computation: branches, resources, assertions, results."""

import collections

import numpy as np
import tensorflow as tf

from tests.runtime.conformance.cases import Cases, Run, mapped

case = Cases()


@case(fast=True)
def switch_case():
    def function(i):
        return tf.switch_case(i, [lambda: 1.5, lambda: 2.5], default=lambda: -1.0)

    return Run(mapped(function, np.int32), [0, 1, 9], gives=[np.float32(n) for n in (1.5, 2.5, -1)])


@case(fast=True)
def mutable_table_of_a_client():
    def function(key):
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=0)
        keys = tf.constant(["a", "b"])
        with tf.control_dependencies([table.insert([key], [5])]):
            keys = tf.identity(keys)  # makes the lookup wait for the insertion
            return table.size(), table.lookup(keys)

    gives = [(np.int64(1), np.array(v)) for v in ([5, 0], [0, 5])]
    return Run(mapped(function, np.str_), ["a", "b"], gives=gives)


@case(fast=True)
def variable_of_a_client():
    """Checks that the variable is initialized for every client and every call."""

    def function(x):
        variable = tf.Variable(1.0)
        with tf.control_dependencies([variable.assign_add(x)]):
            return variable.read_value()

    add = mapped(function, np.float32)

    def twice(values):
        return add(values), add(values)

    gives = [np.float32(n) for n in (2, 3, 5)]
    return Run(twice, [1.0, 2.0, 4.0], gives=(gives, gives))


@case(fast=True)
def assertion_without_dependents():
    """Checks that operations on which no result depends are not run."""

    def function(x):
        tf.raw_ops.Assert(condition=x > 0, data=["not positive"])
        return 2 * x

    return Run(mapped(function, np.float32), [1.0, -2.0], gives=[np.float32(2), np.float32(-4)])


@case()
def results_that_are_python_values():
    function = mapped(lambda x: collections.OrderedDict(b=3, a=(np.ones(2), True, "s")), np.float32)
    gives = collections.OrderedDict(b=np.int32(3), a=(np.ones(2), np.bool_(True), b"s"))
    return Run(function, [1.0, 2.0], gives=[gives, gives])
