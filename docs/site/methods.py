"""Makes a page for each row of `docs/methods/index.md`.

It is made of that row, `docs/methods/when.md`, docstrings, signatures and results.
"""

import functools
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import griffe
import tensorflow as tf

from docs.results.data import markdown, named, over_seeds, pick
from docs.site import examples, formulas, layers
from docs.site.links import ROOT
from tff_pfl import models, testing
from tff_pfl.algorithms import ALGORITHMS, make
from tff_pfl.arguments.kinds import function_of
from tff_pfl.arguments.ranges import ranges_of

_INDEX = ROOT / "docs" / "methods" / "index.md"
_WHEN = ROOT / "docs" / "methods" / "when.md"


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

    @property
    def titles(self) -> list[str]:
        """The names of the method and its variants in their papers."""
        return re.split(", | and ", self.title)

    @property
    def advice(self) -> dict[str, str]:
        """The sentences of `docs/methods/when.md`: "Use it", "Not" and "Cost"."""
        section = _WHEN.read_text().partition(f"\n## `{self.names[0]}`\n")[2].partition("\n## ")[0]
        points = " ".join(section.split()).split("* ")[1:]
        return {key: text.strip() for key, _, text in (point.partition(": ") for point in points)}


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
    pages = ["methods/index.md", {"In other libraries": "methods/others.md"}]
    return [*pages, *({group: pages} for group, pages in groups.items())]


def pages() -> dict[str, str]:
    """Returns the texts of the pages."""
    return {f"methods/{method.names[0]}.md": _page(method) for method in listed()}


def names_of(page: str) -> list[str]:
    """Returns the names of the method of a page, and none for other pages."""
    for method in listed():
        if page == f"methods/{method.names[0]}.md":
            return list(method.names)
    return []


def linked(index: str) -> str:
    """Returns the text of the index with links from the names of methods to their pages."""
    page_of = {name: method.names[0] for method in listed() for name in method.names}
    return re.sub(
        r"(?<!\[)`(\w+)`",
        lambda name: f"[{name[0]}]({page_of[name[1]]}.md)" if name[1] in page_of else name[0],
        index,
    )


def _page(method: Method) -> str:
    use, not_, cost = (method.advice[key] for key in ("Use it", "Not", "Cost"))
    sentence, paper = method.kept["in a sentence"], method.kept["paper"]
    parts = [f"# {method.title}", " ".join([sentence, *([f"Paper: {paper}."] if paper else [])])]
    parts += [f"* **When to use it:** {use}\n* **When not:** {not_}"]
    parts += ["## Example", _example(method), "## How it works", *_rounds(method)]
    parts += [
        "## Who keeps what",
        layers.picture(method.names[0]),
        _kept(method),
        "## Cost",
        f"{cost[0].upper()}{cost[1:]}",
    ]
    parts += [_measured(method), "## Options", _options(method), "## Tasks", _tasks(method)]
    parts += ["## Results", _results(method)]
    return "\n\n".join(filter(None, parts)) + "\n"


def _example(method: Method) -> str:
    name = method.names[0]
    parts = [
        f"```python\n{examples.code(name, method.titles[0])}```",
        "`gain` is over training alone; `hurt` and `helped` are the shares of clients that do "
        "worse and better than alone.",
    ]
    if len(pick("digits", study="methods", case=name)):
        options = f"--config=configs/digits.py:{name} --output_dir=runs/{name}"
        parts += [f"By a config:\n\n    .venv/bin/python programs/train.py {options}"]
    return "\n\n".join(parts)


def _rounds(method: Method) -> Iterator[str]:
    options = ALGORITHMS.parameters(method.names[0])
    for number, (module, docstring) in enumerate(method.modules.items()):
        title, _, summary = docstring.partition(": ")
        yield formulas.typeset(
            f"### {title}\n\n{summary}" if number else summary.partition("\n\n")[2], options
        )
        source = module.replace(".", "/") + ".py"
        yield f"Source: [`{source}`](../../{source})"


def _kept(method: Method) -> str:
    kept = {k: text for k, text in method.kept.items() if k not in ("in a sentence", "paper")}
    return "\n".join(f"* {what[0].upper()}{what[1:]}: {text}" for what, text in kept.items())


def _measured(method: Method) -> str:
    data = pick("fashion_mnist", quantity=list(_QUANTITIES))
    found = data.groupby(["case", "quantity"])["value"].median().unstack()
    found = (found / found.loc["fedavg"]).reindex(method.names).dropna()
    if found.empty:
        return ""
    found.index = [f"`{name}`" for name in found.index]
    table = named(found.map("{:.2f}".format), "name", **_QUANTITIES)
    return f"{_MULTIPLES}\n\n{markdown(table).rstrip()}"


_QUANTITIES = {
    "bytes_down": "bytes down",
    "bytes_up": "bytes up",
    "seconds": "seconds",
    "products": "products",
}
_MULTIPLES = """\
Bytes that a client receives and sends in a round, the seconds of a round, and the multiplications
in its products of matrices, as multiples of FedAvg's, [on
Fashion-MNIST](../results/fashion_mnist.md#what-a-round-costs)."""


def _options(method: Method) -> str:
    name, *variants = method.names
    shown = ALGORITHMS.parameters(name)
    parts = [_table(name, shown)]
    for variant in variants:
        before, options = ALGORITHMS.options(name), ALGORITHMS.options(variant)
        changed = {k: v for k, v in options.items() if k in before and before[k] != v}
        text = ", ".join(f"`{key}={value!r}`" for key, value in changed.items())
        further = {k: v for k, v in ALGORITHMS.parameters(variant).items() if k not in shown}
        parts.append(f"`{variant}` has {text or 'the same options'}{', and:' if further else '.'}")
        parts += [_table(variant, further)] if further else []
    return "\n\n".join(parts)


def _table(name: str, parameters: Mapping[str, inspect.Parameter]) -> str:
    if not parameters:
        return "None."
    ranges, meanings = ranges_of(ALGORITHMS[name]), meanings_of(name)
    has_ranges = not parameters.keys().isdisjoint(ranges)
    rows = [("option", "default", *["range"] * has_ranges, "meaning")]
    rows.append(("---",) * len(rows[0]))
    for option, parameter in parameters.items():
        default = "" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        range_ = ranges[option].text if option in ranges else ""
        rows.append((f"`{option}`", default, *[range_] * has_ranges, meanings.get(option, "")))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def meanings_of(name: str) -> dict[str, str]:
    """Returns what docstrings say of the options of a method, as Markdown."""
    options = ALGORITHMS.parameters(name)
    found = _meanings(function_of(ALGORITHMS[name]))
    return {key: formulas.in_code(_linked(found[key]), options) for key in options & found.keys()}


def _linked(text: str) -> str:
    """Returns a text with links from public names to the reference."""
    return re.sub("see `weighing`", "see [`weighing`][tff_pfl.templates.averaging.weighing]", text)


def _meanings(function) -> dict[str, str]:
    """Returns what the docstring of a function, and of those that it extends, says of options."""
    docstring = inspect.getdoc(function) or ""
    found = {}
    for section in griffe.Docstring(docstring, parser="google").parse(warnings=False):
        if section.kind.value in ("parameters", "attributes"):
            found |= {p.name: " ".join(p.description.split()) for p in section.value}
    for base in re.findall(r"`(\w+)`", found.get("**options", "")):
        if extended := getattr(sys.modules[function.__module__], base, None):
            found = _meanings(function_of(extended)) | found
    return found


def _tasks(method: Method) -> str:
    lines, federation = [], {"num_clients": 8, "clients_per_round": 3}
    for kind, options in _MODELS.items():
        try:
            make(method.names[0], _model(**options), testing.tiny_local(0.01), **federation)
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
    parts = []
    for page, title in _ALL_METHODS.items():
        data = pick(page, study="methods", pool="local_test", quantity="accuracy")
        if data["case"].isin(method.names).any():
            names = dict.fromkeys([*method.names, "local", "fedavg"])
            found = over_seeds(data, "model").reindex(names).dropna(how="all")
            heads = {"personalized": "own models", "global": "global model"}
            table = markdown(named(found, "method", **heads)).rstrip()
            parts += [_ACCURACY.format(title=title, page=page), table]
    word = re.compile("|".join(rf"\b{re.escape(title)}(?!\w)" for title in method.titles))
    tutorial = ROOT / "examples" / "notebooks" / "which_method.py"
    links = []
    for path in [tutorial, *sorted((ROOT / "docs" / "results").glob("*.md"))]:
        text = path.read_text()
        if path.stem not in _ALL_METHODS and word.search(text):
            title = (re.search("^# # (.*)", text, re.MULTILINE) or re.match("# (.*)", text))[1]
            links.append(f"* [{title}](../../{path.relative_to(ROOT)})")
    return "\n\n".join([*parts, *(["\n".join(links)] if links else [])]) or "None yet."


_ALL_METHODS = {"digits": "digits", "fashion_mnist": "Fashion-MNIST"}
_ACCURACY = """\
Accuracy [on {title}](../results/{page}.md) in %, the mean over clients: mean and deviation of three
seeds. Nothing was tuned, so that this is no ranking."""
