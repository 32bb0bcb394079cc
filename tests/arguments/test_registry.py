"""Tests registries of functions by name, and their options."""

import functools
import inspect
import types

import pytest

from tff_pfl.arguments.kinds import KindError
from tff_pfl.arguments.names import UnknownNameError, check_names, unknown_name
from tff_pfl.arguments.registry import Registry


def network(shape, classes, *, width, hidden=(3,)):
    return shape, classes, width, hidden


def another(shape, classes, depth=2): ...


@pytest.fixture
def networks():
    registry = Registry("model", "shape", "classes")
    assert registry.register("wide")(network).__wrapped__ is network
    return registry


def test_registry_is_a_mapping_sorted_by_name(networks):
    deep = networks.register("deep")(another)
    assert dict(networks) == {"deep": deep, "wide": networks["wide"]}
    assert list(networks) == ["deep", "wide"] and len(networks) == 2
    assert "wide" in networks and "mlp" not in networks
    for look_up in (networks.__getitem__, networks.options):
        with pytest.raises(UnknownNameError, match="Unknown model 'wode'. Did you mean 'wide'"):
            look_up("wode")


def test_options_are_the_other_arguments(networks):
    networks.register("deep")(another)
    assert networks.options("deep") == {"depth": 2}
    assert networks.options("wide") == {"hidden": (3,)}
    assert networks.parameters("wide").keys() == {"width", "hidden"}
    assert networks.parameters("wide")["width"].default is inspect.Parameter.empty


def test_function_in_place_of_a_name_is_refused(networks):
    message = "The model must be a name, got <function network.*Call the function itself, or reg"
    for look_up in (networks.__getitem__, networks.options):
        with pytest.raises(KindError, match=message):
            look_up(network)


def test_variant_has_other_defaults(networks):
    variant = networks.variant("wider", network, hidden=(9,))
    assert networks["wider"] is variant
    assert variant((2,), 10, width=1) == ((2,), 10, 1, (9,))
    assert networks.options("wider") == {"hidden": (9,)}


def test_wrong_registrations_are_refused(networks):
    message = r"test_registry.another cannot be the model 'wide': .*test_registry.network has that"
    with pytest.raises(ValueError, match=message):
        networks.register("wide")(another)
    networks.register("square")(functools.partial(network, width=2))
    with pytest.raises(ValueError, match="cannot be the model 'square'"):
        networks.register("square")(functools.partial(network, width=3))
    with pytest.raises(TypeError, match="model 'deep' has an option `name`, but"):
        networks.register("deep")(lambda shape, classes, *, name="a": None)
    assert "deep" not in networks


def test_reloaded_module_may_register_again(networks):
    again = types.FunctionType(network.__code__, {}, "network")
    again.__module__, again.__kwdefaults__ = network.__module__, {"hidden": (4,)}
    networks.register("wide")(again)
    assert networks["wide"].__wrapped__ is again and networks.options("wide") == {"hidden": (4,)}


def test_unknown_name_lists_the_nearest_and_all_names():
    assert unknown_name("model", "lenett", ["mlp", "lenet"]) == (
        "Unknown model 'lenett'. Did you mean 'lenet'? Valid: 'mlp', 'lenet'."
    )
    assert unknown_name("x", "qqq", ["b", "a"]) == "Unknown x 'qqq'. Valid: 'b', 'a'."
    found = unknown_name("x", "ab", ["b", "abc", "zz", "a"], most=2)
    assert found == "Unknown x 'ab'. Did you mean 'abc'? Valid: 'abc', 'b', ... (4 in all)."
    assert unknown_name("x", "qqq", []) == "Unknown x 'qqq'. Valid: none."
    check_names("key", ["a"], ["a", "b"])
    with pytest.raises(KeyError, match="Unknown key 'aa'.* Did you mean 'a'.* Look there"):
        check_names("key", ["a", "aa"], ["a", "b"], error=KeyError, tip="Look there.")
