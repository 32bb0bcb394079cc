"""Tests the draw of attackers by the run's seed, and refused attacks."""

import pytest

from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_model
from tests.marks import together
from tff_pfl.algorithms import make
from tff_pfl.attacks import ATTACKS, attackers_of, drawn_attackers
from tff_pfl.templates import compose
from tff_pfl.tracing.errors import TemplateError

each_attack_on_uploads = pytest.mark.parametrize(
    "attack", [attack for name, attack in ATTACKS.items() if name != "label_flip"]
)


def test_attackers_are_drawn_by_the_seed():
    drawn = {seed: drawn_attackers(0.2, 20, seed) for seed in range(20)}
    for seed, ids in drawn.items():
        assert len(set(ids)) == 4 and list(ids) == sorted(ids) and set(ids) <= set(range(20))
        assert ids == drawn_attackers(0.2, 20, seed)
        assert set(ids) < set(drawn_attackers(0.5, 20, seed))
    assert len(set(drawn.values())) > 15
    assert set().union(*drawn.values()) == set(range(20))


def test_number_of_attackers_is_rounded_to_at_least_one():
    for fraction, num_clients, number in (
        *((0.0, 10, 0), (0.01, 10, 1), (0.2, 7, 1)),
        *((0.25, 6, 2), (0.26, 10, 3), (1.0, 3, 3)),
    ):
        assert len(drawn_attackers(fraction, num_clients, 0)) == number


def test_attackers_of_reads_a_config():
    ids = drawn_attackers(0.5, 6, 3)
    assert attackers_of({"name": "noise", "client_ids": [], "fraction": 0.5}, 6, 3) == ids
    assert attackers_of({"client_ids": [4, 1], "fraction": 0.0}, 6, 3) == (1, 4)
    assert attackers_of({"name": "custom"}, 6, 3) == ()


@each_attack_on_uploads
@together(
    ("name", "exchange", "message"),
    [
        ("local", "train", r"uploads of local \(exchange 'train'\) .*exchange. .*'label_flip'"),
        ("fedpg", "personalize", "'personalize'.* nothing .* Set exchange_name .*: 'train'"),
    ],
)
def test_attack_refuses_exchanges_without_uploads(attack, name, exchange, message):
    algorithm = make(name, tiny_model(), local_sgd())
    assert attack(algorithm, exchange_name=exchange) is algorithm  # No attackers.
    with pytest.raises(TemplateError, match=message):
        attack(algorithm, client_ids=[0], exchange_name=exchange)


def test_attack_refuses_uploads_without_vectors():
    """Uses FedAMP's first exchange, in which clients upload only their arrival."""
    algorithm = make("fedamp", tiny_model(), local_sgd(), num_clients=3)
    attacked = ATTACKS["noise"](algorithm, client_ids=[0], exchange_name="arrivals")
    with pytest.raises(TemplateError, match="'arrivals'.* only scalars and integers.*: 'train'"):
        compose(attacked, EXAMPLES_TYPE)
