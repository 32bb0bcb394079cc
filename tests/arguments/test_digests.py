"""Tests that an edit of what a selector computes changes its description."""

import importlib
import sys

import numpy as np
import pandas as pd
import pytest

from tests.marks import together
from tests.own_modules import own_modules
from tff_pfl.arguments.digests import described, digest_of
from tff_pfl.arguments.kinds import KindError
from tff_pfl.clients import Participation

HEAD = """
import dataclasses, enum, functools
import numpy as np, pandas as pd
import helper
from helper import factor
from tff_pfl.clients import Selector

class Order(enum.Enum):
    UP = {up}
    DOWN = 2

OFFSET = {offset}
TABLE = [("a", {cell})]

def inner(scale={default}):
    def closed(x):
        return {enclosed} * x * scale
    return closed

def made(number):
    return lambda x: number * x

chosen = functools.partial(made(3), {partial})

class Base(Selector):
    weight = {attribute}

    @property
    def shift(self):
        return {property}

    @staticmethod
    def moved(x):
        return x + {static}

@dataclasses.dataclass(frozen=True)
class Own(Base):
    function: object = made({cell_of_closure})
    names: frozenset = frozenset(["a", "{element}"])
    order: Order = Order.UP
    frame: object = dataclasses.field(default_factory=lambda: pd.DataFrame(dict(a=[1, {frame}])))
    array: object = dataclasses.field(default_factory=lambda: np.array([1, {array}]))

    def __call__(self, clients, number, rng):
        {docstring}
        def last(x):
            return x + OFFSET + factor(1) + helper.CONSTANT
        import lazy
        order = [lazy.value, TABLE, inner(), chosen, self.shift, self.moved(1), self.weight]
        return clients.client_ids[:number] if last(1) else order  {comment}
"""
HELPER = """
CONSTANT = {constant}
UNUSED = {unused}
def factor(x):
    return {factor} * x
"""
VALUES = dict.fromkeys(
    [
        *("up", "offset", "cell", "default", "enclosed", "partial", "attribute", "property"),
        *("static", "cell_of_closure", "element", "frame", "array", "constant", "factor", "lazy"),
    ],
    1,
)
UNSEEN = {"comment": "# a comment", "docstring": '"""Draws."""', "unused": 5}


def digest(folder, **changes):
    """Writes the modules of a selector with some values changed, and describes the selector."""
    values = {**VALUES, "comment": "", "docstring": "", "unused": 1, **changes}
    names = {"own_selector": HEAD, "helper": HELPER, "lazy": "value = {lazy}"}
    for name, source in names.items():
        (folder / f"{name}.py").write_text(source.format(**values))
    with own_modules(folder):
        sys.path.insert(0, str(folder))
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        importlib.invalidate_caches()
        importlib.import_module("lazy")
        selector = importlib.import_module("own_selector").Own()
        sys.dont_write_bytecode = before
        return described(Participation(selector=selector))["selector"]["code"]


def test_each_edit_of_what_a_selector_computes_is_noticed(tmp_path):
    digests = {name: digest(tmp_path, **{name: 7}) for name in VALUES}
    assert digest(tmp_path) == digest(tmp_path) not in digests.values()
    assert len(set(digests.values())) == len(VALUES)


@together("change", [{name: value} for name, value in UNSEEN.items()])
def test_comments_docstrings_and_unused_values_do_not_matter(tmp_path, change):
    assert digest(tmp_path) == digest(tmp_path, **change)


def test_objects_count_by_their_fields_and_kinds():
    class Field:
        def __init__(self, value):
            self.value = value

    values = [1, 1.0, True, "1", b"1", [1], (1,), {1: 1}, {1}, np.float32(1), np.array([1]), None]
    values += [pd.DataFrame({"a": [1]}), pd.DataFrame({"b": [1]}), Field(1), Field(2), np.add]
    values += [np.array(["a", None], object), np.random.default_rng(0), np.random.default_rng(1)]
    found = list(map(digest_of, values))
    assert len(set(found)) == len(values) and found == list(map(digest_of, values))
    loop: list = []
    loop.append(loop)
    assert digest_of(loop) != digest_of([[]])


def test_values_that_cannot_be_compared_are_refused(tmp_path):
    with open(tmp_path / "file", "w") as file, pytest.raises(KindError, match="_io.TextIOWrapper"):
        digest_of({"file": file})
