"""Tests of `tff_pfl.algorithms.extension`: builders that add to another one."""

import inspect

import pytest

from tests.federation import EXAMPLES_TYPE, local_sgd, tiny_model
from tff_pfl.algorithms import build_fedsam, build_plgu_grep, hyperparameters
from tff_pfl.algorithms.extension import extends


def build_base(model, local, hook=None, *, rate=1.0, weighting="num_examples", epochs=5, seed=0):
    """The base's."""
    return model, local, hook, rate, weighting, epochs, seed


@extends(build_base)
def build_more(model, local, *, rho: float = 0.05, weighting="uniform", **options):
    """The extension's."""
    return rho, build_base(model, local, "mine", weighting=weighting, **options)


@extends(build_base, without=["epochs", "rate"])
def build_less(model, local, *, steps, **options):
    return steps, build_base(model, local, **options)


def defaults(builder):
    parameters = inspect.signature(builder).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def test_own_options_come_first_then_those_of_the_base():
    parameters = inspect.signature(build_more).parameters
    expected = ["model", "local", "rho", "weighting", "rate", "epochs", "seed"]
    assert list(parameters) == expected  # neither `hook` nor `options`
    assert parameters["rho"].annotation is float
    assert parameters["model"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert (build_more.__name__, build_more.__doc__) == ("build_more", "The extension's.")


def test_an_own_default_overrides_the_bases():
    assert defaults(build_more) == {
        "rho": 0.05,
        "weighting": "uniform",
        "rate": 1.0,
        "epochs": 5,
        "seed": 0,
    }
    assert build_more(1, 2) == (0.05, (1, 2, "mine", 1.0, "uniform", 5, 0))


def test_options_reach_the_base():
    actual = build_more(1, local=2, rho=3, weighting="mine", epochs=4, seed=5)
    assert actual == (3, (1, 2, "mine", 1.0, "mine", 4, 5))
    with pytest.raises(TypeError, match="unexpected keyword argument 'rhu'"):
        build_more(1, 2, rhu=3)


def test_options_can_be_left_out():
    empty = inspect.Parameter.empty
    assert defaults(build_less) == {"steps": empty, "weighting": "num_examples", "seed": 0}
    assert build_less(1, 2, steps=3) == (3, (1, 2, None, 1.0, "num_examples", 5, 0))
    with pytest.raises(TypeError, match="^build_less has no option epochs.$"):
        build_less(1, 2, steps=3, epochs=4)
    with pytest.raises(TypeError, match="^build_less has no option epochs, rate.$"):
        build_less(1, 2, steps=3, rate=1.0, epochs=4)


def test_extensions_can_be_extended():
    @extends(build_more, without=["rho"])
    def build_twice(model, local, *, seed=7, **options):
        return build_more(model, local, seed=seed, **options)

    assert list(defaults(build_twice)) == ["seed", "weighting", "rate", "epochs"]
    assert build_twice(1, 2, rate=3.0) == (0.05, (1, 2, "mine", 3.0, "uniform", 5, 7))


def test_hyperparameters_of_fedsam():
    actual = hyperparameters("fedsam")
    assert actual == {"rho": 0.05} | hyperparameters("fedavg")
    assert list(actual)[0] == "rho" and "seed" not in actual and "objective" not in actual


def test_hyperparameters_of_plgu_grep():
    expected = {
        "rho": 0.05,
        "body_steps": 1,
        "xi_scale": 1.0,
        "norm_order": 2.0,
        "weighting": "uniform",
        "personal_layers": None,
        "head_epochs": None,
        "evaluation_head_epochs": 0,
    }
    assert hyperparameters("plgu_grep") == expected


def test_builders_refuse_what_is_no_option_of_theirs():
    arguments = tiny_model(), EXAMPLES_TYPE, local_sgd()
    with pytest.raises(TypeError, match="build_plgu_grep has no option body_epochs"):
        build_plgu_grep(*arguments, body_epochs=2)
    with pytest.raises(TypeError, match="rhu"):
        build_fedsam(*arguments, rhu=0.1)
