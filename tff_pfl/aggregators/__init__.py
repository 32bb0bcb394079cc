"""Aggregators that TFF does not offer."""

from tff_pfl.aggregators.branch_mean import BranchMeanFactory, Shares
from tff_pfl.aggregators.decoded import DecodedBranchMeanFactory, DecodedMeanFactory
from tff_pfl.aggregators.fields import Counted, CountedFactory, FieldsFactory
from tff_pfl.aggregators.secure import (
    Aggregator,
    is_plain_mean,
    is_secure,
    quiet_secure_sums,
    sums_securely,
)
from tff_pfl.aggregators.stack import Stack, StackFactory, StackRuleFactory

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
