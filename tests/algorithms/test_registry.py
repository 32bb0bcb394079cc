"""What the registry of algorithms knows of them."""

import functools

import pytest

from tff_pfl.algorithms import ALGORITHMS, trains_where
from tff_pfl.algorithms.registry import training_switch
from tff_pfl.ranges import between, takes


def test_where_a_method_trains_goes_through_other_decorators_and_variants(monkeypatch):
    monkeypatch.setattr(ALGORITHMS, "_registered", dict(ALGORITHMS))

    @ALGORITHMS.register("own")
    @takes(share=between(0, 1))
    @trains_where(gradient="pseudo")
    def own(model, local, *, gradient="full", share=0.5): ...

    ALGORITHMS.variant("half", functools.partial(own, share=0.1), gradient="pseudo")
    assert training_switch("own") == training_switch("half") == ("gradient", "pseudo")
    assert training_switch("s_fedpg") == ("gradient", "pseudo")
    assert training_switch("fedavg") is None


@pytest.mark.parametrize("switch", [{}, {"gradients": "full"}, {"gradient": "full", "steps": 1}])
def test_a_method_trains_where_one_of_its_options_has_a_value(switch):
    def own(model, local, *, gradient="full", steps=3): ...

    with pytest.raises(TypeError, match="one option of own and its value, got {"):
        trains_where(**switch)(own)
