"""Measures rounds of FedAvg, of this library and of others in turns; does not import TensorFlow.

Cells are measured in the order of their worth. In each cell, each contender computes its first
round and some more, and its figures are written at once. All contenders of the cell then take
turns, and their figures are written again.
"""

import contextlib
import dataclasses
import os
import pathlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.contestants.serving import Server
from benchmarks.gpu.report import CheckError, Report

OURS = "tensorflow"  # serves this library, and the bare loop
_PROGRAMS = {name: f"with_{name}.py" for name in (OURS, "jax", "torch")}
_START_SECONDS = 60.0
_FIRST_SECONDS = 60.0  # the time limit of a first round, which traces and compiles
_LATER_SECONDS = 20.0
_LONG_ROUND = 3.0  # such rounds are measured once
_AT_ONCE, _IN_TURNS = 2, 3
_LOSS_TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Cell:
    """A work that contenders do.

    Attributes:
        network: `linear`, `cnn` (PGFed's) or `resnet18`.
        clients: The number of clients.
        sigma: The spread of the clients' sizes, which are lognormal; 0 for equal sizes.
        contenders: Pairs of a framework and a method, in the order of their worth.
        examples_per_client: The mean size of a client.
        batch_size: The number of examples in a step.
        learning_rate: The rate of SGD.
        options: Options of the network.
    """

    network: str
    clients: int
    sigma: float
    contenders: Sequence[tuple[str, str]]
    examples_per_client: int
    batch_size: int
    learning_rate: float
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The first words of its tasks."""
        return f"{self.network} {self.clients} {'unequal' if self.sigma else 'equal'}"

    def work(self) -> dict[str, Any]:
        """Returns the work of a request."""
        work = dataclasses.asdict(self) | {"epochs": 1}
        del work["contenders"]
        return work


_LINEAR = {"examples_per_client": 20, "batch_size": 20, "learning_rate": 0.005}
_CNN = {"examples_per_client": 200, "batch_size": 50, "learning_rate": 0.01}
_SIZES = {"linear": _LINEAR, "cnn": _CNN}
# The ways in which this library computes clients, of equal and of unequal sizes.
_WAYS = {
    "linear": ("stacked+xla", "stacked", "loop"),
    "cnn": ("stacked+xla", "stacked", "stacked+patches+xla", "loop"),
}
_UNEQUAL_WAYS = ("stacked+xla", "stacked", "loop")
_OTHERS = (("jax", "vmap"), ("torch", "vmap"), (OURS, "bare"), ("torch", "loop"), ("jax", "map"))
_CELLS = (  # network, clients, sigma
    ("cnn", 10, 0.0),
    ("linear", 10, 0.0),
    ("cnn", 100, 0.0),
    ("linear", 100, 0.0),
    ("cnn", 100, 1.0),
    ("linear", 100, 1.0),
    ("cnn", 2, 0.0),
    ("linear", 2, 0.0),
    ("cnn", 10, 1.0),
    ("linear", 10, 1.0),
)


def cells(is_toy: bool) -> Iterator[Cell]:
    """Yields the cells; toys have a few clients and what a CPU can do."""
    for network, clients, sigma in [("linear", 3, 0.0), ("cnn", 3, 1.0)] if is_toy else _CELLS:
        sizes, ways = _SIZES[network], _UNEQUAL_WAYS if sigma else _WAYS[network]
        if is_toy:
            sizes = sizes | {"examples_per_client": 6, "batch_size": 3}
            # CPUs have groups of convolutions with XLA only.
            ways = ways if network == "linear" else ("stacked+xla", "loop")
        if clients == 100 and not sigma:
            ways += ("stacked_of_25+xla",)
        others = _OTHERS if clients > 2 else ()
        yield Cell(network, clients, sigma, [*((OURS, way) for way in ways), *others], **sizes)


def measure_rounds(report: Report) -> None:
    """Measures the rounds of linear models and PGFed's CNN, in float32.

    Raises:
        CheckError: TensorFlow computes on another device than the check is for.
    """
    _measure(report, list(_PROGRAMS), cells(report.is_toy), "float32")


def measure_resnet(report: Report) -> None:
    """Measures ResNet-18 in the precision that the part is named after.

    Raises:
        CheckError: See `measure_rounds`.
    """
    precision = report.part.removeprefix("resnet18_")
    ways = ["loop"] if report.is_toy else ["stacked", "loop", "stacked+xla"]
    if precision != "bfloat16":
        ways.append("bare")
    toy = {"width": 4, "blocks": (1, 1), "groups": 2} if report.is_toy else {}
    clients, size, batch_size = (2, 4, 4) if report.is_toy else (10, 100, 50)
    contenders = [(OURS, way) for way in ways]
    cell = Cell("resnet18", clients, 0.0, contenders, size, batch_size, 0.001, toy)
    _measure(report, [OURS], [cell], precision)


def _measure(report, frameworks, cells, precision):
    with contextlib.ExitStack() as resources:
        log = resources.enter_context(open(report.folder / "log.txt", "ab"))
        servers = {
            name: resources.enter_context(contextlib.closing(_server(name, precision, log)))
            for name in frameworks
        }
        for name, server in servers.items():  # they start at the same time
            report.write(name, _described(name, server.description, report))
        for cell in cells:
            _measure_cell(report, cell, servers)


def _server(name, precision, log):
    if name == OURS:
        return Server(
            _PROGRAMS[name], [precision], sys.executable, dict(os.environ), log, _START_SECONDS
        )
    return Server(_PROGRAMS[name], [], python_of_others(), foreign(os.environ), log, _START_SECONDS)


def python_of_others() -> str:
    """Returns the Python that may have PyTorch and JAX."""
    return os.environ.get("BENCHMARKS_PYTHON", "python3")


def foreign(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns an environment for a Python of the machine, without this Python's libraries."""
    kept = {k: v for k, v in environment.items() if not k.startswith(("PYTHON", "TF_"))}
    own = str(pathlib.Path(sys.base_prefix) / "lib")
    libraries = kept.pop("LD_LIBRARY_PATH", "").split(os.pathsep)
    if others := [folder for folder in libraries if folder not in ("", own)]:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(others)
    return kept | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # processes share the GPU


def _described(name, description, report):
    """Returns what a framework says of itself, or that it is missing."""
    found = description.get("device", "none")
    if name == OURS and (found == "none" or (found == "CPU") != report.is_toy):
        raise CheckError(f"TensorFlow computes on {found}: {description.get('error', 'no GPU')}.")
    if "error" in description:
        return {"missing": description["error"], "python": python_of_others()}
    return {"device": found} | description["versions"]


def _measure_cell(report: Report, cell: Cell, servers: Mapping[str, Server]) -> None:
    """Measures the contenders of a cell, each alone and then in turns."""
    missing = {name for name in servers if "missing" in report.records[name]}
    contenders = [(name, method) for name, method in cell.contenders if name not in missing]
    tasks = {pair: f"{cell.name}: {' '.join(pair)}" for pair in contenders}
    figures = {}
    for pair, task in tasks.items():
        if report.records.get(task, {}).get("rounds", 0) >= _AT_ONCE + _IN_TURNS:
            return  # measured by an earlier run
        if report.left() < 2.0:
            report.leave_out(task)
            continue
        report.set_status("running", task)
        figures[pair] = _first_rounds(report, cell, servers[pair[0]], pair[1])
        _check_loss(cell, pair, figures)
        report.write(task, figures[pair])
    for _ in range(_IN_TURNS):
        for (name, method), found in figures.items():
            if "error" not in found and found["seconds"] < _LONG_ROUND and report.left() > 1.0:
                _add_round(report, cell, servers[name], method, found)
    for pair, found in figures.items():
        if found.get("rounds", 0) > _AT_ONCE:
            report.write(tasks[pair], found)


def _first_rounds(report, cell, server, method):
    """Returns the figures of the first rounds of a contender."""
    first = server.round(method, cell.work(), min(_FIRST_SECONDS, report.left()))
    if "error" in first:
        return first
    figures = {"first_seconds": first["seconds"], "loss": first["loss"], "all_seconds": []}
    if "warnings" in first:
        figures["warnings"] = first["warnings"]
    for _ in range(_AT_ONCE):
        if "error" not in figures and sum(figures["all_seconds"]) < _LONG_ROUND:
            _add_round(report, cell, server, method, figures)
    return figures


def _add_round(report, cell, server, method, figures):
    limit = max(min(_LATER_SECONDS, report.left()), 1.0)
    answer = server.round(method, cell.work(), limit)
    if "error" in answer:
        figures["error"] = answer["error"]
        return
    if answer["first"]:  # the process was started again
        return
    figures["all_seconds"] = [*figures["all_seconds"], answer["seconds"]]
    figures["seconds"] = statistics.median(figures["all_seconds"])
    figures["rounds"] = len(figures["all_seconds"])
    if "memory_mib" in answer:
        figures["memory_mib"] = answer["memory_mib"]


def _check_loss(cell, pair, figures):
    """Adds an error if the first round's loss shows that a contender does other work."""
    losses = {other: found["loss"] for other, found in figures.items() if "loss" in found}
    if pair not in losses:
        return
    first, loss = next(iter(losses.values())), losses[pair]
    if not abs(loss - first) <= _LOSS_TOLERANCE * abs(first):  # also true for NaN
        figures[pair]["error"] = f"its loss is {loss:.4g}, that of others {first:.4g}"
