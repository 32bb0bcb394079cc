"""Makes a page for each row of `docs/methods/index.md`, from docstrings, signatures and results."""

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

import griffe
import tensorflow as tf

from docs.results.data import over_seeds, pick
from docs.site.links import ROOT
from tff_pfl import models, testing
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.arguments.kinds import function_of
from tff_pfl.arguments.ranges import ranges_of

_INDEX = ROOT / "docs" / "methods" / "index.md"


class Method(NamedTuple):
    """A row of the index: a method with its variants.

    Attributes:
        group: The heading above the row: what is personal.
        names: Names in `ALGORITHMS`.
        kept: The cells of the row after the names, by the heads of their columns.
    """

    group: str
    names: tuple[str, ...]
    kept: dict[str, str]

    @property
    def modules(self) -> dict[str, str]:
        """The docstrings of the modules that define the method and its variants, by module."""
        found = (function_of(ALGORITHMS[name]).__module__ for name in self.names)
        return {module: inspect.cleandoc(sys.modules[module].__doc__) for module in found}

    @property
    def title(self) -> str:
        """The name of the method in its paper."""
        return next(iter(self.modules.values())).partition(":")[0]


def listed() -> Iterator[Method]:
    """Yields the methods of the index."""
    group = head = None
    for line in _INDEX.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif line.startswith("| name"):
            head = cells
        elif line.startswith("| `"):
            names = tuple(re.findall(r"`(\w+)`", cells[0]))
            yield Method(group, names, dict(zip(head[1:], cells[1:], strict=True)))


def navigation() -> list:
    """Returns the entries of the navigation, by groups."""
    groups = {}
    for method in listed():
        groups.setdefault(method.group, []).append({method.title: f"methods/{method.names[0]}.md"})
    return ["methods/index.md", *({group: pages} for group, pages in groups.items())]


def pages() -> dict[str, str]:
    """Returns the texts of the pages."""
    return {f"methods/{method.names[0]}.md": _page(method) for method in listed()}


def linked(index: str) -> str:
    """Returns the text of the index with links to the pages."""
    return re.sub(r"^\| (`(\w+)`)", r"| [\1](\2.md)", index, flags=re.MULTILINE)


def _page(method: Method) -> str:
    parts = [f"# {method.title}"]
    parts += (_rounds(module, text) for module, text in method.modules.items())
    parts += ["## Who keeps what", _kept(method), "## Use", _use(method.names[0])]
    parts += ["## Options", _options(method), "## Tasks", _tasks(method)]
    parts += ["## Results", _results(method)]
    return "\n\n".join(parts) + "\n"


def _rounds(module: str, docstring: str) -> str:
    name, _, text = docstring.partition(": ")
    source = module.replace(".", "/") + ".py"
    return f"{text[0].upper()}{text[1:]}\n\nSource: [`{source}`](../../{source})"


def _kept(method: Method) -> str:
    kept = [f"* {what[0].upper()}{what[1:]}: {text}" for what, text in method.kept.items() if text]
    return "\n".join([*kept, "", _bytes(method)])


def _use(name: str) -> str:
    code = f'```python\nalgorithm = tff_pfl.make("{name}", model, local)\n```'
    if not len(pick("digits", study="methods", case=name)):
        return code
    options = f"--config=configs/digits.py:{name} --output_dir=runs/{name}"
    return f"{code}\n\n    .venv/bin/python programs/train.py {options}"


def _bytes(method: Method) -> str:
    data = pick("digits", study="methods", quantity=["bytes_down", "bytes_up"], seed=0)
    model = data[data["case"] == "fedavg"]["value"].iloc[0]
    rows = []
    for name in method.names:
        sent = data[data["case"] == name].set_index("quantity")["value"]
        if len(sent):
            down, up = (sent[key] / model for key in ("bytes_down", "bytes_up"))
            rows.append(f"| `{name}` | {down:.2f} | {up:.2f} |")
    if not rows:
        return ""
    table = "\n".join(["| name | down | up |", "|---|---:|---:|", *rows])
    text = "Bytes of a client in a round, as multiples of the model's, for 10 of 20 clients"
    return f"{text} of [handwritten digits](../results/digits.md):\n\n{table}"


def _options(method: Method) -> str:
    name, *variants = method.names
    ranges, meanings = ranges_of(ALGORITHMS[name]), _meanings(function_of(ALGORITHMS[name]))
    rows = ["| option | default | range | |", "|---|---|---|---|"]
    for option, parameter in ALGORITHMS.parameters(name).items():
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        range_ = ranges[option].text if option in ranges else ""
        rows.append(f"| `{option}` | {default} | {range_} | {meanings.get(option, '')} |")
    parts = ["\n".join(rows)]
    for variant in variants:
        of_variant = ALGORITHMS.options(variant)
        same = ALGORITHMS.options(name)
        changed = {k: v for k, v in of_variant.items() if k not in same or same[k] != v}
        text = ", ".join(f"`{key}={value!r}`" for key, value in changed.items())
        parts.append(f"`{variant}` has {text or 'the same options'}.")
    return "\n\n".join(parts)


def _meanings(function) -> dict[str, str]:
    """Returns what the docstring of a function, and of those that it extends, says of options."""
    docstring = inspect.getdoc(function) or ""
    found = {}
    for section in griffe.Docstring(docstring, parser="google").parse(warnings=False):
        if section.kind is griffe.DocstringSectionKind.parameters:
            found = {p.name: " ".join(p.description.split()) for p in section.value}
    for base in re.findall(r"`(\w+)`", found.get("**options", "")):
        if extended := getattr(sys.modules[function.__module__], base, None):
            found = _meanings(function_of(extended)) | found
    return found


def _tasks(method: Method) -> str:
    lines, federation = [], {"num_clients": 8, "clients_per_round": 3}
    for kind, options in _MODELS.items():
        try:
            make(method.names[0], _model(**options), testing.tiny_local(), **federation)
        except ValueError as error:
            lines.append(f"* {kind}: refused. {error}")
        else:
            lines.append(f"* {kind}: yes.")
    return "\n".join(lines)


@functools.cache
def _model(normalization: str | None = None, task: str = "classification") -> models.Model:
    def network():
        inputs = tf.keras.Input((8,))
        hidden = tf.keras.layers.Dense(4, name="hidden")(inputs)
        if normalization is not None:
            hidden = getattr(tf.keras.layers, normalization)(name="norm")(hidden)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(3, name="head")(hidden))

    return models.from_keras(network, input_shape=(8,), task=models.TASKS[task]())


_MODELS = {
    "Classification without normalisation layers": {},
    "Regression and other tasks without class labels": {"task": "regression"},
    "Layer or group normalisation": {"normalization": "LayerNormalization"},
    "Batch normalisation": {"normalization": "BatchNormalization"},
}


def _results(method: Method) -> str:
    data = pick("digits", study="methods", pool="local_test", quantity="accuracy")
    lines = []
    for name in method.names:
        of_name = data[data["case"] == name]
        if len(of_name):
            cells = over_seeds(of_name, "model").loc[name]
            text = ", ".join(
                f"{cells[m]} % ({m})" for m in ("personalized", "global") if m in cells
            )
            lines.append(f"* `{name}` on [handwritten digits](../results/digits.md): {text}")
    word = re.compile(rf"\b{re.escape(method.title)}\b")
    for path in sorted((ROOT / "docs" / "results").glob("*.md")):
        text = path.read_text()
        if path.stem != "digits" and word.search(text):
            title = text.partition("\n")[0].removeprefix("# ")
            lines.append(f"* [{title}](../results/{path.name})")
    return "\n".join(lines) or "None yet."
