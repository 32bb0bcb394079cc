"""What is garbage, for tests that ask for its collection."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def only_new_garbage() -> Iterator[None]:
    """Collections look at what is made inside: to look at all that TensorFlow has takes seconds."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
