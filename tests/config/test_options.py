"""Tests that options come from the signatures of functions that take them."""

from collections.abc import Iterable
from typing import Optional

import ml_collections
import pytest

from tests.config.small import small
from tff_pfl.arguments.names import UnknownNameError
from tff_pfl.attacks import ATTACKS
from tff_pfl.config import ConfigError, check_config, complete, config_of_run, default_config
from tff_pfl.experiment import resolved
from tff_pfl.models import MODELS


@pytest.fixture
def chosen():
    """Returns `(function) -> config`; the config chooses the model of the function."""

    def config_of(function):
        MODELS.register("mine")(function)
        config = default_config()
        config.model.name = "mine"
        return config

    return config_of


def test_options_have_the_defaults_and_types_of_the_signature(chosen):
    def network(
        image_shape,
        num_classes,
        *,
        width=3,
        rate: float = 1,
        label="x",
        depth: int | None = None,
        layers: Iterable[str] | None = None,
        factor: Optional[float] = None,  # noqa: UP045
        anything=None,
    ): ...

    config = chosen(network)
    complete(config)
    options = config.model.options
    assert options.to_dict() == MODELS.options("mine")
    kinds = {"width": int, "rate": float, "label": str, "depth": int, "layers": tuple}
    kinds |= {"factor": float, "anything": object}
    assert {name: options.get_type(name) for name in options} == kinds
    check_config(config)


def test_annotations_may_be_text(chosen):
    def network(image_shape, num_classes, *, depth: "int | None" = None): ...

    config = chosen(network)
    complete(config)
    assert config.model.options.get_type("depth") is int
    network.__annotations__["depth"] = "OfNoModule"
    complete(config)
    check_config(config)


def test_option_without_a_default_must_be_set(chosen):
    config = chosen(lambda image_shape, num_classes, *, width: None)
    for _ in range(2):
        with pytest.raises(ConfigError, match="config.model.options.width must be set"):
            check_config(config)
        complete(config)
    config.model.options.width = 4
    check_config(config)


def test_set_options_are_kept_with_the_types_of_the_signature(chosen):
    def network(image_shape, num_classes, *, rate: float = 0.5, layers=(1,)): ...

    config = chosen(network)
    config.model.options.update(rate=2, layers=[3, 4])
    complete(config)
    assert config.model.options.to_dict() == {"rate": 2.0, "layers": (3, 4)}
    assert config.model.options.get_type("rate") is float
    config = chosen(network)
    config.model.options.rate = "fast"
    with pytest.raises(ConfigError, match="config.model.options: .*rate"):
        complete(config)


def test_another_attack_lacks_the_options_of_the_default_attack():
    name = "noise"
    config = default_config()
    config.attack.name = name
    config.attack.client_ids = (0,)
    complete(config)
    check_config(config)
    options = {"fraction": 0.0} | ATTACKS.options(name) | {"client_ids": (0,)}
    assert config.attack.to_dict() == {"name": name} | options
    complete(config, {"attack.name": ""})
    check_config(config)


def test_complete_replaces_names_of_the_config():
    config = small("ditto")
    config.algorithm.lambda_ = 0.5
    complete(config, {"model.name": "lenet", "algorithm.name": "ditto"})
    assert (config.model.name, config.model.options.to_dict()) == ("lenet", {})
    assert config.algorithm.lambda_ == 0.5
    complete(config, {"algorithm.name": "fedprox", "local.optimizer": "adam"})
    assert config.algorithm.to_dict().keys() == {"name", "mu", "personalized", "weighting"}
    assert config.local.options.beta_1 == 0.9
    with pytest.raises(UnknownNameError, match="Unknown model 'lennet'"):
        complete(config, {"model.name": "lennet"})


def test_complete_keeps_locks_and_other_configs():
    config = default_config().lock()
    complete(config)
    assert config.is_locked and config.model.options.is_locked
    other = ml_collections.ConfigDict({"steps": 1, "model": {"width": 2}})
    complete(other)
    assert other.to_dict() == {"steps": 1, "model": {"width": 2}}


def test_saved_config_has_all_its_options():
    config = small("fedper")
    config.local.optimizer = "adam"
    config.local.options.beta_1 = 0.5
    config.aggregator.name = "robust"
    complete(config)
    again = config_of_run(resolved(config))
    assert again.to_dict() == config.to_dict()
    assert again.algorithm.get_type("personal_layers") is tuple


def test_unknown_name_is_refused():
    config = default_config()
    config.algorithm.name = "neme"
    with pytest.raises(ConfigError, match="config.algorithm.name: Unknown algorithm 'neme'"):
        complete(config)
