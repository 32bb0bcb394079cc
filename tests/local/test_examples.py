"""Tests of `tff_pfl.local.examples`."""

import numpy as np
import tensorflow_federated as tff

from tff_pfl.local import Examples, examples_type


def test_the_type_is_that_of_the_tuple():
    spelled = "<x=uint8[?,28,28,1],y=int32[?],size=int32>"
    assert str(examples_type((28, 28, 1))) == spelled
    assert str(examples_type([3], np.float32, capacity=7)) == (
        "<x=float32[7,3],y=int32[7],size=int32>"
    )

    @tff.tensorflow.computation(examples_type([2]))
    def fields(examples):
        assert isinstance(examples, Examples)
        return examples.size

    rows = np.zeros([3, 2], np.uint8), np.zeros([3], np.int32)
    assert fields(Examples(*rows, np.int32(2))) == 2
