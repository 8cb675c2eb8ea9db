"""Does it pay? Logged rounds replayed under other parameters and other schedulers."""

from calibrator.core.value.policies import Policy, monotone_survival, standard_policies
from calibrator.core.value.report import PolicyValue, ValueReport, value_report

__all__ = [
    "Policy",
    "PolicyValue",
    "ValueReport",
    "monotone_survival",
    "standard_policies",
    "value_report",
]
