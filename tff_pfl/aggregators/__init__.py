"""Aggregators that TFF lacks, as `tff.aggregators` factories."""

from tff_pfl.aggregators.stack import Stack, StackFactory

__all__ = ["Stack", "StackFactory"]
