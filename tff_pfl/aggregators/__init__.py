"""Aggregators that TFF lacks, as `tff.aggregators` factories."""

from tff_pfl.aggregators.branch_mean import BranchMeanFactory, Shares
from tff_pfl.aggregators.fields import FieldsFactory
from tff_pfl.aggregators.stack import Stack, StackFactory

__all__ = ["BranchMeanFactory", "FieldsFactory", "Shares", "Stack", "StackFactory"]
