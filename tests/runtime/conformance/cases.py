"""All conformance cases."""

from tests.runtime.conformance import (
    cases_aggregations,
    cases_aggregators,
    cases_algorithms,
    cases_analytics,
    cases_builders,
    cases_cohorts,
    cases_errors,
    cases_lambdas,
    cases_learning,
    cases_metrics,
    cases_numerics,
    cases_placements,
    cases_secure,
    cases_sequences,
    cases_simulation,
    cases_structs,
    cases_tensorflow,
    cases_values,
)

MODULES = [
    cases_placements,
    cases_aggregations,
    cases_secure,
    cases_cohorts,
    cases_values,
    cases_structs,
    cases_sequences,
    cases_lambdas,
    cases_tensorflow,
    cases_numerics,
    cases_errors,
    cases_aggregators,
    cases_metrics,
    cases_analytics,
    cases_simulation,
    cases_learning,
    cases_builders,
    cases_algorithms,
]
CASES = [case for module in MODULES for case in module.case]
