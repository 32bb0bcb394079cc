"""Clients that are selected and do not report are absent for FedPG, as those never selected."""

import numpy as np

from tests.algorithms.fedpg.test_round import Federation
from tests.federation import assert_equal
from tff_pfl.clients import Participation

UNRELIABLE = Participation(over_selection=1.5, dropout=(0.4,))
ROUNDS = [UNRELIABLE.participants(3, number, 8, 4) for number in range(8)]


def test_the_gradient_of_who_drops_out_is_remembered_and_counts():
    federation, last_report, dropped_later = Federation(), {}, set()
    for number, found in enumerate(ROUNDS):
        before, states = federation.state.algorithm.memory, dict(federation.client_states)
        output = federation.next_here(found.reported.tolist())
        memory = federation.state.algorithm.memory
        for client_id in last_report.keys() & set(found.dropped.tolist()):
            (slot,) = np.flatnonzero(np.asarray(memory.client_ids) == client_id)
            assert memory.rounds[slot] == last_report[client_id]
            assert_equal(memory.gradients[slot], before.gradients[slot])
            assert_equal(federation.client_states[client_id], states[client_id])
            dropped_later.add(client_id)
        last_report |= dict.fromkeys(found.reported.tolist(), number)
        # A gradient counts as long as a pass over all clients takes, at the size of this cohort.
        window = len(last_report) / len(found.reported)
        ages = [number - last for last in last_report.values()]
        absent = sum(0 < age <= window for age in ages)
        assert output.metrics["train"]["server"]["num_absent"] == absent
    assert len(dropped_later) > 3
