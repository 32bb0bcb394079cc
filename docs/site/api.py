"""Makes the pages of the API: a package each, and the names of `import tff_pfl`."""

import functools
import importlib
import inspect
import pkgutil
import re
import sys

import tff_pfl
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.arguments.registry import Registry

PACKAGES = [
    f"tff_pfl.{module.name}" for module in pkgutil.iter_modules(tff_pfl.__path__) if module.ispkg
]

_TOPICS = {
    "Load and federate": ("data", "datasets", "clients"),
    "Make models and methods": ("models", "algorithms", "local", "aggregators"),
    "Train and compare": ("experiment", "evaluation", "analysis", "config", "studies", "cluster"),
    "Protect and attack": ("privacy", "compression", "attacks"),
    "Run and deploy": ("runtime", "deployment", "drivers"),
    "Extend and test": ("templates", "tracing", "testing", "arguments", "output"),
}
"""The packages that a task needs."""


def navigation() -> list[dict[str, str | list]]:
    """Returns the entries of the navigation, by topics."""
    if missing := {f"tff_pfl.{name}" for names in _TOPICS.values() for name in names} ^ {*PACKAGES}:
        raise ValueError(f"These packages and the topics of the API differ: {sorted(missing)}.")
    topics = [
        {topic: [{f"tff_pfl.{name}": f"api/tff_pfl.{name}.md"} for name in names]}
        for topic, names in _TOPICS.items()
    ]
    return ["api/tff_pfl.md", *topics]


def pages() -> dict[str, str]:
    """Returns the texts of the pages.

    Raises:
        ValueError: A name that a package offers has no docstring.
    """
    return {
        "api/tff_pfl.md": _front_door(),
        **{f"api/{package}.md": _reference(package) for package in PACKAGES},
    }


def _front_door() -> str:
    rows = {topic: ["| name | |", "|---|---|"] for topic in _TOPICS}
    topic_of = {package: topic for topic, names in _TOPICS.items() for package in names}
    elsewhere, shown = [], [found for package in PACKAGES for found in _paths(package)]
    for name in tff_pfl.__all__:
        path, value = _path("tff_pfl", name), getattr(tff_pfl, name)
        rows[topic_of[path.split(".")[1]]].append(
            f"| [`{name}`][{path}] | {_summary(name, value)} |"
        )
        if not any(f"{path}.".startswith(f"{found}.") for found in shown):
            elsewhere.append(path)
    tables = ["\n".join(["", f"## {topic}", "", *lines]) for topic, lines in rows.items()]
    return "\n".join([_head("tff_pfl"), *tables, "", *map(_entry, elsewhere)])


def _reference(package: str) -> str:
    return "\n".join([_head(package), *map(_entry, _paths(package))])


def _head(package: str) -> str:
    options = "    options: {members: false, show_root_heading: false}"
    return "\n".join([f"# {package}", "", f"::: {package}", options, ""])


def _entry(path: str) -> str:
    return f"::: {path}\n"


@functools.cache
def _paths(package: str) -> list[str]:
    """Returns the paths of the names that a package offers and defines, without the methods.

    They are its modules if it offers no names, such as `tff_pfl.arguments`.
    """
    module = importlib.import_module(package)
    names = getattr(module, "__all__", ())
    if not names:
        return [f"{package}.{found.name}" for found in pkgutil.iter_modules(module.__path__)]
    paths = [_path(package, name) for name in names if name not in ALGORITHMS]
    return list(dict.fromkeys(path for path in paths if path.startswith(f"{package}.")))


def _path(package: str, name: str) -> str:
    """Returns the module and the name by which a name of a package is defined."""
    value = getattr(importlib.import_module(package), name)
    if inspect.ismodule(value):
        return value.__name__
    module = getattr(value, "__module__", None)
    if module in sys.modules and getattr(sys.modules[module], name, None) is value:
        return f"{module}.{name}"
    assigned = re.compile(rf"^{name}\b.*=", re.MULTILINE)
    for found, module in sorted(sys.modules.items()):
        has_name = found.startswith("tff_pfl.") and vars(module).get(name) is value
        if has_name and assigned.search(inspect.getsource(module)):
            return f"{found}.{name}"
    raise ValueError(f"No module of {package} defines {name!r}.")


def _summary(name: str, value) -> str:
    if isinstance(value, Registry):
        return f"Names: {', '.join(f'`{key}`' for key in value)}."
    if not (docstring := inspect.getdoc(value)):
        raise ValueError(f"tff_pfl.{name} has no docstring.")
    return re.split(r"\n\n", docstring)[0].replace("\n", " ").replace("|", "\\|")
