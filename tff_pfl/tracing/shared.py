"""Shares the traces of a function among graphs, until they are released."""

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class SharedTraces:
    """A function of TensorFlow whose traces are kept until `release`.

    A network that is traced takes tens of megabytes in Python, which are needed only while graphs
    that call it are built.
    """

    _all: "weakref.WeakSet[SharedTraces]" = weakref.WeakSet()

    def __init__(self, function: Callable[..., Any]):
        """Makes a function of positional tensors."""
        self._function = function
        self._traced: tf.types.experimental.GenericFunction | None = None
        self._all.add(self)

    def of(self, *specs: Any) -> tf.types.experimental.ConcreteFunction:
        """Returns the trace for arguments with these specs."""
        traced = self._traced
        if traced is None:
            traced = self._traced = tf.function(self._function, autograph=False)
        return traced.get_concrete_function(*specs)

    @classmethod
    def release(cls) -> None:
        """Forgets the traces of all functions. Later graphs trace them again."""
        for function in list(cls._all):
            function._traced = None
