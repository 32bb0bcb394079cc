"""A differential fuzz of the vectorization: operations in contexts against one client at a time.

By default a few cases of some families are tried. `make fuzz` tries some of each operation, and
says what became of them.
"""

import collections
import contextlib
import os

import hypothesis
import pytest
from hypothesis import strategies

from tests.marks import slow
from tests.runtime.graph.fuzz import algebra, arrays, control, differential, elementwise, networks
from tests.runtime.graph.fuzz.differential import Case, Shapes
from tests.runtime.graph.fuzz.drawing import draws
from tff_pfl.runtime.graph import internals, pfor_rules

FAMILIES = (
    elementwise.family,
    arrays.reductions,
    arrays.shapes,
    arrays.slices,
    arrays.segments,
    arrays.sorting,
    algebra.family,
    networks.convolutions,
    networks.functions,
    networks.keras,
    control.flow,
    control.randoms,
)
OPERATIONS = [operation for family in FAMILIES for operation in family]
# Of each operation, where all are tried; of each family by default.
CASES = int(os.environ.get("FUZZ_CASES", "8"))
CASES_OF_A_FAMILY = 2
# They take long; rules that this library has for them are tried in `test_pfor_rules.py`, too.
LONG = (arrays.segments, arrays.sorting, networks.convolutions, networks.functions, networks.keras)


@strategies.composite
def cases(draw, operations):
    operation = draw(strategies.sampled_from(operations))
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
        jit_compile=not operation.draws and draw(strategies.integers(0, 9)) == 9,
    )


def try_cases(operations, number, record_property):
    """Tries `number` cases, all of which are tried although one gives something else."""
    outcomes, different = collections.Counter(), []

    @draws(number, operations[0].name)
    @hypothesis.given(case=cases(operations))
    def try_case(case):
        try:
            outcomes[differential.run(case)] += 1
        except AssertionError as error:
            different.append(f"{case}\n{error}")

    try_case()
    for outcome, count in outcomes.items():
        record_property(f"fuzz: {outcome.value}", count)
    record_property("fuzz: different", len(different))
    assert not different, "\n\n".join(different)


@pytest.mark.parametrize(
    "family",
    [
        (slow if family in LONG else pytest.param)(family, id=next(iter(family)).family)
        for family in FAMILIES
    ],
)
def test_some_of_a_family(family, record_property):
    try_cases(list(family), CASES_OF_A_FAMILY, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operation(operation, record_property):
    try_cases([operation], CASES, record_property)


# Contexts that have all operations between them.
_ALL_RULES = {"plain", "gradients", "second-order gradients"}
# Rules of TensorFlow that no operation here meets.
_UNMET = {
    "text and files": ["DecodeCSV", "ParseExampleV2", "ParseSingleExample", "StringFormat"],
    "output": ["Print", "PrintV2"],
    "random numbers with a state, which no client work may draw": [
        "Multinomial",
        "RandomGamma",
        "RandomPoissonV2",
        "RandomStandardNormal",
        "RandomUniform",
        "RandomUniformInt",
        "TruncatedNormal",
    ],
    "lists of TensorFlow 1": [
        "StackPopV2",
        "StackPushV2",
        "TensorArrayGatherV3",
        "TensorArrayGradV3",
        "TensorArrayReadV3",
        "TensorArrayScatterV3",
        "TensorArraySizeV3",
        "TensorArrayV3",
        "TensorArrayWriteV3",
    ],
    "lists, which are refused": [
        "TensorListConcatV2",
        "TensorListGather",
        "TensorListScatterIntoExistingList",
    ],
    "not made by Python, or by graphs with a state only": [
        "Case",
        "LogicalXor",
        "StatefulPartitionedCall",
        "StatelessRandomGetAlg",
        "StatelessRandomGetKeyCounterAlg",
        "While",
        "XlaEinsum",
        "XlaSharding",
        "_EagerConst",
    ],
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_rule_is_tried():
    met = set()
    for operation in OPERATIONS:
        operands = operation.variants[0]
        for context in _ALL_RULES.intersection(differential.contexts_of(operands)):
            case = Case(
                operation=operation,
                variant=0,
                context=context,
                stacked=(True,) * len(operands),
                constant=True,
                shapes=Shapes.KNOWN,
                num_clients=1,
                size=2,
                seed=0,
                jit_compile=False,
            )
            with contextlib.suppress(*differential.UNTRACEABLE):
                met |= differential.operation_types(case)
    unmet = {name for names in _UNMET.values() for name in names}
    rules = {*internals.pfor_rules, *pfor_rules.rules(internals.pfor_rules)}
    assert rules - met == unmet
