"""Aggregators that TFF lacks."""

from tff_pfl.aggregators.branch_mean import BranchMeanFactory, Shares
from tff_pfl.aggregators.counted import Counted, CountedFactory
from tff_pfl.aggregators.decoded import DecodedBranchMeanFactory, DecodedMeanFactory
from tff_pfl.aggregators.fields import Aggregator, FieldsFactory
from tff_pfl.aggregators.secure import (
    is_plain_mean,
    is_secure,
    quiet_secure_sums,
    sums_securely,
)
from tff_pfl.aggregators.stack import Stack, StackFactory
from tff_pfl.aggregators.stack_rule import StackRuleFactory

__all__ = [
    "Aggregator",
    "BranchMeanFactory",
    "Counted",
    "CountedFactory",
    "DecodedBranchMeanFactory",
    "DecodedMeanFactory",
    "FieldsFactory",
    "Shares",
    "Stack",
    "StackFactory",
    "StackRuleFactory",
    "is_plain_mean",
    "is_secure",
    "quiet_secure_sums",
    "sums_securely",
]
