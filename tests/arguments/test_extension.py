"""Tests of `tff_pfl.arguments.extension`."""

import inspect

import pytest

from tests.federation import local_sgd, tiny_model
from tff_pfl.algorithms import ALGORITHMS, hyperparameters, make
from tff_pfl.arguments.extension import extends
from tff_pfl.arguments.ranges import at_least, ranges_of, takes, whole
from tff_pfl.templates import averaging


@takes(rate=at_least(0), epochs=whole(0))
def base(model, local, hook=None, *, rate=1.0, weighting="num_examples", epochs=5, memory=0):
    """The base's."""
    return model, local, hook, rate, weighting, epochs, memory


@extends(base)
@takes(rho=at_least(0))
def more(model, local, *, rho: float = 0.05, weighting="uniform", **options):
    """The extension's."""
    return rho, base(model, local, "mine", weighting=weighting, **options)


@extends(base, without=["epochs", "rate"])
def less(model, local, *, steps, **options):
    return steps, base(model, local, **options)


def defaults(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_signature_has_own_options_before_inherited_ones():
    parameters = inspect.signature(more).parameters
    expected = ["model", "local", "rho", "weighting", "rate", "epochs", "memory"]
    assert list(parameters) == expected  # neither `hook` nor `options`
    assert parameters["rho"].annotation is float
    assert parameters["model"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert (more.__name__, more.__doc__) == ("more", "The extension's.")


def test_own_default_overrides_the_inherited_one():
    assert defaults(more) == {
        "rho": 0.05,
        "weighting": "uniform",
        "rate": 1.0,
        "epochs": 5,
        "memory": 0,
    }
    assert more(1, 2) == (0.05, (1, 2, "mine", 1.0, "uniform", 5, 0))


def test_options_reach_the_base():
    actual = more(1, local=2, rho=3, weighting="mine", epochs=4, memory=5)
    assert actual == (3, (1, 2, "mine", 1.0, "mine", 4, 5))
    with pytest.raises(TypeError, match="Unknown option of more 'rhu'. Did you mean 'rho'"):
        more(1, 2, rhu=3)


def test_base_may_take_any_keyword_arguments():
    def anything(model, *, rate=1.0, **others):
        return rate, others

    @extends(anything, without=["rate"])
    def wider(model, *, rho=0.1, **options):
        return rho, anything(model, **options)

    assert wider(1, rho=2, whatever=3) == (2, (1.0, {"whatever": 3}))
    with pytest.raises(TypeError, match="Unknown option of wider 'rate'"):
        wider(1, rate=3)


def test_options_can_be_excluded():
    empty = inspect.Parameter.empty
    assert defaults(less) == {"steps": empty, "weighting": "num_examples", "memory": 0}
    assert less(1, 2, steps=3) == (3, (1, 2, None, 1.0, "num_examples", 5, 0))
    with pytest.raises(TypeError, match="Unknown option of less 'epochs'. Did you mean 'steps'"):
        less(1, 2, steps=3, epochs=4)


def test_ranges_are_inherited_with_their_options():
    assert set(ranges_of(more)) == {"rho", "rate", "epochs"}
    assert ranges_of(more)["rate"] is ranges_of(base)["rate"]
    assert set(ranges_of(less)) == set()


def test_extensions_can_be_extended():
    @extends(more, without=["rho"])
    def twice(model, local, *, memory=7, **options):
        return more(model, local, memory=memory, **options)

    assert list(defaults(twice)) == ["memory", "weighting", "rate", "epochs"]
    assert twice(1, 2, rate=3.0) == (0.05, (1, 2, "mine", 3.0, "uniform", 5, 7))


def test_hyperparameters_include_inherited_options():
    """Aggregator and server optimizer are options, but objects, which configs set elsewhere."""
    expected = {"rho": 0.05, "personalized": "global", "weighting": "num_examples"}
    assert list(hyperparameters("fedsam").items()) == list(expected.items())
    options = set(ALGORITHMS.options("fedsam"))
    assert options - set(expected) == {"aggregator", "server_optimizer"}
    assert options >= set(defaults(averaging))


def test_unknown_options_of_methods_raise():
    arguments = tiny_model(), local_sgd()
    with pytest.raises(ValueError, match="Unknown option of algorithm 'pfedmb' 'aggregator'"):
        make("pfedmb", *arguments, aggregator=None)
    with pytest.raises(ValueError, match="Unknown option .* 'rhu'. Did you mean 'rho'"):
        make("fedsam", *arguments, rhu=0.1)
    with pytest.raises(TypeError, match="'pgfed' needs clients_per_round: pass"):
        make("pgfed", *arguments, num_clients=3)
