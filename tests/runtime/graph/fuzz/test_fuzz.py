"""Fuzzes the vectorization: compares operations in contexts with one client at a time."""

import collections
import os

import hypothesis
import pytest
from hypothesis import strategies

from tests.runtime.graph.fuzz import algebra, arrays, control, differential, elementwise, networks
from tests.runtime.graph.fuzz.differential import Case, Shapes, Way
from tests.runtime.graph.fuzz.drawing import draws

FAMILIES = (
    elementwise.operations,
    arrays.reductions,
    arrays.shapes,
    arrays.slices,
    arrays.segments,
    arrays.failures,
    arrays.sorting,
    algebra.operations,
    networks.convolutions,
    networks.functions,
    networks.keras,
    control.flow,
    control.randoms,
)
OPERATIONS = [operation for family in FAMILIES for operation in family]
WAYS = list(Way)
WAYS_OF_DRAWS = [Way.VECTORIZED, Way.LOOP, Way.LANES]
CASES = int(os.environ.get("FUZZ_CASES", "8"))  # of each operation


@strategies.composite
def cases(draw, operation):
    variant = draw(strategies.integers(0, len(operation.variants) - 1))
    operands = operation.variants[variant]
    stacked = draw(strategies.tuples(*[strategies.booleans()] * len(operands)).filter(any))
    return Case(
        operation=operation,
        variant=variant,
        context=draw(strategies.sampled_from(differential.contexts_of(operands))),
        stacked=stacked,
        constant=draw(strategies.booleans()),
        shapes=draw(strategies.sampled_from([Shapes.KNOWN, *Shapes])),
        num_clients=draw(strategies.integers(1, 4)),
        size=draw(strategies.sampled_from([2, 3, 1, 0])),
        seed=draw(strategies.integers(0, 2**32 - 1)),
        way=draw(strategies.sampled_from(WAYS_OF_DRAWS if operation.draws else WAYS)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_vectorized_operation_equals_each_client_alone(operation):
    """Tries all cases, even after one that differs."""
    outcomes, different = collections.Counter(), []

    @draws(CASES, operation.name)
    @hypothesis.given(case=cases(operation))
    def try_case(case):
        try:
            outcomes[f"{case.way.value}: {differential.run(case).value}"] += 1
        except AssertionError as error:
            different.append(f"{case}\n{error}")

    try_case()
    print(dict(outcomes))
    assert not different, "\n\n".join(different)
