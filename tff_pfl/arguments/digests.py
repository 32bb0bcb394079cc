"""Describes values for records, and digests users' values with the code that they run."""

import builtins
import copyreg
import dataclasses
import dis
import enum
import functools
import hashlib
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tff_pfl.arguments.kinds import KindError, function_of
from tff_pfl.arguments.tracebacks import is_users

_PLAIN = (type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis))
_BUILT_IN = (
    types.BuiltinFunctionType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_LOADS = frozenset(["LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME"])
# What Python itself adds to a class.
_OF_PYTHON = frozenset(
    [
        "__abstractmethods__",
        "__annotations__",
        "__dict__",
        "__doc__",
        "__firstlineno__",
        "__match_args__",
        "__module__",
        "__parameters__",
        "__weakref__",
        "_abc_impl",
    ]
)


def described(value: Any) -> Any:
    """Returns a value as a JSON value for records, and functions and other objects by name.

    Instances of a user's own dataclasses also have a digest of their fields and code.

    Raises:
        KindError: See `digest_of`.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): described(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return list(map(described, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        own = type(value).__module__.partition(".")[0] != __package__.partition(".")[0]
        code = {"code": digest_of(value)} if own else {}
        return {"name": type(value).__qualname__, **code, **described(fields)}
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        return value.tolist()
    named = function_of(value) if callable(value) else value
    return getattr(named, "__qualname__", type(value).__qualname__)


def digest_of(value: Any) -> str:
    """Returns a digest of a value and of the code that it runs, 16 hexadecimal digits.

    It covers the fields of objects; the instructions, defaults and enclosed values of functions and
    methods; and the global values, functions and classes that these use, of all modules. It does
    not cover docstrings, comments and lines, nor installed packages, which count by their names.

    Raises:
        KindError: A part cannot be digested, such as an open file.
    """
    found = hashlib.sha256()
    for part in _Walk().parts(value):
        found.update(part + b"\0" if isinstance(part, bytes) else f"{part}\0".encode())
    return found.hexdigest()[:16]


class _Walk:
    """A walk through a value, which meets each of its parts once."""

    def __init__(self):
        """Has met nothing."""
        self._met: dict[int, tuple[int, Any]] = {}  # the parts are kept, so that ids stay theirs

    def parts(self, value: Any, names: tuple[str, ...] = ()) -> Iterator[Any]:
        """Yields what determines a value; of a module, only the attributes with given names."""
        if isinstance(value, _PLAIN) and not isinstance(value, enum.Enum):
            yield from (type(value).__name__, repr(value))
            return
        if isinstance(value, types.ModuleType):
            yield from self._of_module(value, names)
            return
        is_new = id(value) not in self._met
        number, _ = self._met.setdefault(id(value), (len(self._met), value))
        yield number
        if is_new:
            yield from self._of(value)

    def _of(self, value) -> Iterator[Any]:
        if isinstance(value, types.FunctionType):
            yield from self._of_function(value)
        elif isinstance(value, type):
            yield from self._of_class(value)
        elif isinstance(value, _BUILT_IN):
            yield value.__qualname__
            yield from self.parts(getattr(value, "__self__", None))
        elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
            yield from (value.dtype.str, value.shape, value.tobytes())
        elif isinstance(value, set | frozenset):
            yield from (type(value).__name__, sorted(map(digest_of, value)))
        elif isinstance(value, property):
            yield from self._all("property", value.fget, value.fset, value.fdel)
        elif (wrapped := getattr(value, "__wrapped__", None)) is not None:
            yield from self._all(type(value).__qualname__, wrapped)
        elif isinstance(value, functools.cached_property):
            yield from self._all("cached_property", value.func)
        elif type(value) in (list, tuple):
            yield from self._all(type(value).__name__, *value)
        elif type(value) in (dict, types.MappingProxyType):
            yield from self._all("mapping", *value, *value.values())
        else:
            yield from self._of_object(value)

    def _all(self, *values) -> Iterator[Any]:
        yield len(values)
        for value in values:
            yield from self.parts(value)

    def _of_module(self, module, names) -> Iterator[Any]:
        yield module.__name__
        if _is_own(module.__name__):
            for name in names:
                if name in vars(module):
                    yield name
                    yield from self.parts(vars(module)[name], names)

    def _of_function(self, function) -> Iterator[Any]:
        yield from (function.__module__, function.__qualname__)
        if not _is_own(function.__module__):
            return
        yield from _instructions(function.__code__)
        yield from self._all(function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                content = cell.cell_contents
            except ValueError:  # it is empty
                continue
            yield from self.parts(content)
        names = tuple(_names(function.__code__))
        for name in _globals(function.__code__):
            if name in function.__globals__:
                yield name
                yield from self.parts(function.__globals__[name], names)
            elif not hasattr(builtins, name) and name in sys.modules:
                yield from self.parts(sys.modules[name], names)

    def _of_class(self, kind) -> Iterator[Any]:
        yield from (kind.__module__, kind.__qualname__)
        if not _is_own(kind.__module__):
            return
        yield from self._all(*kind.__bases__)
        for name, member in sorted(vars(kind).items()):
            function = getattr(member, "__func__", member)  # of a class method or a static one
            code = getattr(function, "__code__", None)
            is_generated = code is not None and code.co_filename == "<string>"
            if not (name in _OF_PYTHON or name.startswith("__dataclass_") or is_generated):
                yield from (name, type(member).__name__)
                yield from self.parts(function)

    def _of_object(self, value) -> Iterator[Any]:
        """Yields what pickle would write of an object."""
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        except Exception as error:  # a user's class may raise any error
            shown = repr(value).partition("\n")[0]
            raise KindError(
                f"{shown:.80} of type {type(value).__qualname__} cannot be compared when a run is "
                f"resumed ({error}). Make it from numbers and texts where it is used."
            ) from error
        if isinstance(reduced, str):  # the name of a global value
            yield from (type(value).__qualname__, reduced)
        else:
            contents = [list(part) if hasattr(part, "__next__") else part for part in reduced]
            yield from self._all(*contents)


def _is_own(module: str | None) -> bool:
    """Returns whether a module is a user's own one, such as the code of a notebook."""
    file = getattr(sys.modules.get(module or ""), "__file__", None)
    name = (module or "").partition(".")[0]
    return name not in sys.builtin_module_names and (file is None or is_users(file))


def _instructions(code: types.CodeType) -> Iterator[Any]:
    """Yields the instructions of a function, without its docstring, its lines and its file."""
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        if isinstance(value, types.CodeType):
            yield from _instructions(value)
        else:
            is_set = isinstance(value, frozenset)
            yield instruction.opname, repr(sorted(value, key=repr) if is_set else value)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yields the code of a function and of the functions inside of it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _names(code: types.CodeType) -> dict[str, None]:
    """Returns the names of globals, attributes and modules that a function uses, in order."""
    return dict.fromkeys(name for each in _codes(code) for name in each.co_names)


def _globals(code: types.CodeType) -> dict[str, None]:
    """Returns the names of global values and modules that a function loads, in order."""
    instructions = (it for each in _codes(code) for it in dis.get_instructions(each))
    return dict.fromkeys(it.argval for it in instructions if it.opname in _LOADS)
