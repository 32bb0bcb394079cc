"""Contract checks for algorithms, a tiny federation, and block-by-block runs of algorithms."""

from tff_pfl.testing.contract import CHECKS, Subject
from tff_pfl.testing.eager import EagerProcess
from tff_pfl.testing.federation import (
    EXAMPLES_TYPE,
    tiny_examples,
    tiny_local,
    tiny_model,
    tiny_normalized_model,
)

__all__ = [
    "CHECKS",
    "EXAMPLES_TYPE",
    "EagerProcess",
    "Subject",
    "tiny_examples",
    "tiny_local",
    "tiny_model",
    "tiny_normalized_model",
]
