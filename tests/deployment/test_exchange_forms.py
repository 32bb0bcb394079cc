"""Tests that TFF's forms of a process do its rounds, in both runtimes."""

import pytest
import tensorflow_federated as tff

from tests.deployment.deployed import SIZES, SUBJECTS, rounds_of_the_process
from tests.federation import assert_close, assert_equal
from tests.marks import slow
from tff_pfl import compose_stateless_view, runtime
from tff_pfl.arguments.kinds import KindError
from tff_pfl.deployment import FormError, export_client, forms, named_tensors

mapreduce = tff.backends.mapreduce
# The methods with an exchange that gathers uploads at the server, by `tff.federated_aggregate`.
GATHERING = (
    *("fedamp", "heur_fedamp", "fedmgda_plus", "fedpac", "fedpg", "s_fedpg", "ifca", "fedfomo"),
    *("pfedhn", "pfedhn_pc", "plgu_ghn", "pgfed", "pgfed_ce", "pgfedmo", "pgfedmo_ce", "fedtgp"),
    *("apple", "cfl", "fedcac", "fedgen-ensemble", "fedgh", "floco"),
)


# TensorFlow arranges operations of these methods differently in computations of forms.
ROUNDED = ("pfedhn", "pfedhn_pc", "plgu_ghn", "pfedme")


def rounds_of_forms(process, clients, next_states):
    """Yields the same of TFF's computations for the forms of the exchanges."""
    on_clients = [
        mapreduce.get_computation_for_broadcast_form(form.on_clients) for form in forms(process)
    ]
    state = process.initialize()
    for _ in range(3):
        kept, metrics = [{"state": client.state} for client in clients], {}
        for next_state, keep in zip(next_states, on_clients, strict=True):
            inputs = [client._asdict() | own for client, own in zip(clients, kept, strict=True)]
            kept = keep(state, inputs)
            state, its = next_state(state, inputs)
            metrics |= its
        clients = [c._replace(state=own["state"]) for c, own in zip(clients, kept, strict=True)]
        yield state, clients, metrics


CONTEXTS = {
    "graph": lambda: runtime.create_graph_context(vectorize="never"),
    "stock": tff.backends.test.create_sync_test_cpp_execution_context,  # with secure sums
}


def assert_forms_do_the_rounds(process, clients, next_states, context, compare):
    with tff.framework.get_context_stack().install(context()):
        expected = list(rounds_of_the_process(process, clients))
        found = list(rounds_of_forms(process, clients, next_states))
    for (state, new, metrics), (other, theirs, others) in zip(found, expected, strict=True):
        rest = {name: others[name] for name in metrics}
        states, their_states = ([c.state for c in some] for some in (new, theirs))
        for pair in ((state, other), (states, their_states), (metrics, rest)):
            compare(*(named_tensors("value", value) for value in pair))


CASES = [(name, context) for name in SUBJECTS for context in CONTEXTS]
FAST = [("fedavg", "graph")]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "context"), [*FAST, *(slow(*case) for case in CASES if case not in FAST)]
)
def test_forms_do_the_rounds_of_the_process(name, context):
    process, clients = SUBJECTS[name].process, SUBJECTS[name].clients(SIZES)
    kinds = ["map_reduce", "distribute_aggregate"]
    if name.startswith(GATHERING):
        kinds.pop()
        with pytest.raises(FormError, match="has no DistributeAggregateForm: its aggregator"):
            _ = [form.distribute_aggregate for form in forms(process)]
    for kind in kinds:
        make = getattr(mapreduce, f"get_computation_for_{kind}_form")
        next_states = [make(getattr(form, kind)) for form in forms(process)]
        compare = assert_close if name.partition("-")[0] in ROUNDED else assert_equal
        assert_forms_do_the_rounds(process, clients, next_states, CONTEXTS[context], compare)


def test_forms_broadcast_what_clients_select_from():
    (subject,) = (subject for name, subject in SUBJECTS.items() if name.startswith("pfedhn-"))
    (form,) = forms(subject.process)
    assert form.down_bytes > form.exchange.down_bytes
    # The form sends the id and the report, of 4 counts and means, besides the upload.
    assert form.up_bytes > form.exchange.up_bytes


def test_experiment_in_place_of_a_process_is_refused(tmp_path):
    for make in (forms, lambda it: export_client(it, tmp_path), compose_stateless_view):
        with pytest.raises(KindError, match="The process must be of type PersonalizedProcess, got"):
            make(object())
