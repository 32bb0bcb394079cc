"""Tests that values made by named functions have recipes as long as they live."""

import dataclasses
import gc
import weakref

from tff_pfl.arguments.recipes import Recipe, recipe_of, remembering


@dataclasses.dataclass(frozen=True)
class Network:
    width: int
    depth: int = 2


@remembering("model", "wide")
def wide(shape, *, width=3):
    return Network(width)


@remembering("change", "unchanged")
def unchanged(network, depth=1):
    return network if depth is None else dataclasses.replace(network, depth=depth)


def test_recipe_has_all_arguments():
    made = wide((2,), width=4)
    found = Recipe("model", "wide", {"shape": (2,), "width": 4}, __name__)
    assert recipe_of(made) == found
    assert recipe_of(wide((2,))).arguments["width"] == 3
    assert recipe_of(Network(4)) is None  # equal, but made in another way
    assert recipe_of(dataclasses.replace(made)) is None


def test_function_that_returns_its_argument_leaves_its_recipe():
    made = wide((2,))
    assert recipe_of(unchanged(made, depth=None)).name == "wide"
    changed = unchanged(made)
    assert recipe_of(changed).arguments == {"network": made, "depth": 1}
    assert recipe_of(made).name == "wide"


def test_recipes_are_forgotten_with_their_values():
    argument = Network(1)
    made, forgotten = unchanged(argument), weakref.ref(argument)
    del argument
    gc.collect()
    assert recipe_of(made).arguments["network"] is forgotten()
    del made
    gc.collect()
    assert forgotten() is None


def test_values_without_references_have_no_recipe():
    one = remembering("number", "one")(lambda: (1, 2))
    assert recipe_of(one()) is None
