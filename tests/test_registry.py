"""Names for what users choose."""

import functools
import inspect
import types

import pytest

from tff_pfl.names import UnknownNameError
from tff_pfl.registry import Registry


def network(shape, classes=10, *, width, hidden=(3,)):
    return shape, classes, width, hidden


def another(shape, classes): ...


@pytest.fixture
def networks():
    registry = Registry("model", "shape", "classes")
    assert registry.register("wide")(network) is network
    return registry


def test_a_registry_is_a_mapping_in_the_order_of_names(networks):
    networks.register("deep")(another)
    assert dict(networks) == {"deep": another, "wide": network}
    assert list(networks) == ["deep", "wide"] and len(networks) == 2
    assert "wide" in networks and "mlp" not in networks
    with pytest.raises(UnknownNameError, match="Unknown model 'wode'. Did you mean 'wide'"):
        networks["wode"]
    with pytest.raises(UnknownNameError, match="Unknown model 'wode'"):
        networks.options("wode")


def test_options_take_keywords_and_have_a_default(networks):
    assert networks.options("wide") == {"hidden": (3,)}
    assert networks.parameters("wide").keys() == {"width", "hidden"}
    assert networks.parameters("wide")["width"].default is inspect.Parameter.empty


def test_a_variant_has_other_defaults(networks):
    variant = networks.variant("wider", network, hidden=(9,))
    assert networks["wider"] is variant
    assert variant((2,), width=1) == ((2,), 10, 1, (9,))
    assert networks.options("wider") == {"hidden": (9,)}


def test_a_name_is_of_one_function(networks):
    message = r"test_registry.another cannot be the model 'wide': .*test_registry.network has that"
    with pytest.raises(ValueError, match=message):
        networks.register("wide")(another)
    networks.register("square")(functools.partial(network, width=2))
    with pytest.raises(ValueError, match="cannot be the model 'square'"):
        networks.register("square")(functools.partial(network, width=3))


def test_an_option_that_would_be_none_is_refused(networks):
    def without_star(shape, classes, hidden=(3,)): ...

    def named(shape, classes, *, name="a"): ...

    def of_an_object(shape, classes, layer=network, *, hidden=(3,)): ...

    message = r"hidden is no option of the model 'deep': .* \(shape, classes, \*, hidden=\(3,\)\)"
    with pytest.raises(TypeError, match=message):
        networks.register("deep")(without_star)
    with pytest.raises(TypeError, match="model 'deep' has an option `name`, where"):
        networks.register("deep")(named)
    message = r"model 'deep' is called with \(shape, classes\), but too many positional arguments"
    with pytest.raises(TypeError, match=message):
        networks.register("deep")(lambda shape: None)
    assert "deep" not in networks
    networks.register("deep")(of_an_object)
    assert networks.options("deep") == {"hidden": (3,)}


def test_a_module_that_is_loaded_again_takes_its_place(networks):
    again = types.FunctionType(network.__code__, {}, "network")
    again.__module__, again.__kwdefaults__ = network.__module__, {"hidden": (4,)}
    networks.register("wide")(again)
    assert networks["wide"] is again and networks.options("wide") == {"hidden": (4,)}
    networks.register("square")(functools.partial(network, width=2))
    networks.register("square")(functools.partial(network, width=2))
