"""Aggregators that TFF does not offer."""

from tff_pfl.aggregators.branch_mean import BranchMeanFactory, DecodedBranchMeanFactory, Shares
from tff_pfl.aggregators.decoded import DecodedMeanFactory
from tff_pfl.aggregators.fields import Counted, CountedFactory, FieldsFactory
from tff_pfl.aggregators.means import Noise, aggregated, is_plain_mean
from tff_pfl.aggregators.secure import Aggregator, is_secure, quiet_secure_sums, sums_securely
from tff_pfl.aggregators.stack import Stack, StackFactory, StackRuleFactory

__all__ = [
    "Aggregator",
    "BranchMeanFactory",
    "Counted",
    "CountedFactory",
    "DecodedBranchMeanFactory",
    "DecodedMeanFactory",
    "FieldsFactory",
    "Noise",
    "Shares",
    "Stack",
    "StackFactory",
    "StackRuleFactory",
    "aggregated",
    "is_plain_mean",
    "is_secure",
    "quiet_secure_sums",
    "sums_securely",
]
