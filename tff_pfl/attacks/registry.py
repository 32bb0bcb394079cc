"""Attacks by name."""

from tff_pfl.registry import Registry

ATTACKS = Registry("attack", "algorithm")
"""Functions `(algorithm, *, client_ids, <options>) -> Algorithm`.

One that needs it has `num_classes`, too, which is no option of a config but comes from the data.
"""
