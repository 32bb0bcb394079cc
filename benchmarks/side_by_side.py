"""Compares a round of this library with the same work by other frameworks, on this machine.

    side_by_side.py [--pfllib=PYTHON:CHECKOUT] [--pgfed_authors=PYTHON:CHECKOUT]
        [--pfl_research=PYTHON] [--fedjax=PYTHON] [--flower=PYTHON] [--methods=fedavg,ditto]
        [--network=cnn|mlp|linear] [--unequal] [--jit_compile]

A framework takes part if its flag is given. PYTHON is the interpreter of an environment with the
framework. CHECKOUT is the folder of its repository, for a framework that is not a package.
docs/guides/side_by_side.md explains how to get each one. This library and a bare TensorFlow loop of
FedAvg always take part. Methods:

    bare_tensorflow  fedavg; a loop without any framework, the basis of comparison
    tff_pfl          fedavg, fedrep, ditto, apfl, pgfed
    pfllib           fedavg, fedrep, ditto, apfl; needs a checkout
    pgfed_authors    pgfed; needs a checkout
    pfl_research     fedavg
    fedjax           fedavg, apfl
    flower           fedavg; its simulation with a client in PyTorch

All contestants do the same round: 10 of 100 clients with 500 synthetic 32x32x3 images, 5 epochs for
each model that a method trains, batches of 50, SGD, on PGFed's CNN, on the CPU. Each framework
selects clients, loads data and stores client states in its own way, in its own training loop, but
without evaluations. The number of threads is the framework's default. Other work:

    --network      linear (784 -> 10) or mlp (784 -> 200 -> 200 -> 10), on 28x28x1 images;
                   pgfed_authors has the CNN only, and pfllib's fedrep fails on linear, which has
                   no body
    --unequal      clients of lognormal sizes (sigma 1) around --examples_per_client, one epoch,
                   batches of 20. fedjax fills a client's last batch with more of its examples.
                   pfllib and pgfed_authors, which leave that batch out, cannot take part
    --jit_compile  XLA compiles the client work of tff_pfl; otherwise as its programs choose

Each contestant is a process. They are started one by one, with a first round that is not measured,
and then take turns, one round each. While one runs, the others sleep. All of them are in memory at
the same time, about a gigabyte each.

Prints JSON lines. The first line describes the machine. Each contestant then has a line with its
versions, the seconds of its rounds, and the ratio of their median to the bare loop; then the same
of the processor, except for flower, whose clients have their own processes. If a contestant fails,
its line has the end of its standard error, the others continue, and the exit code is 1. A
Markdown table of all results comes last.
"""

import pathlib
import sys

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks.contestants import driver
from benchmarks.contestants.common import NETWORKS
from benchmarks.timing import hardware
from tff_pfl.arguments.names import check_names
from tff_pfl.config.interruption import exit_code, interruptible
from tff_pfl.output.files import to_json

flags.DEFINE_string("pfllib", None, "PYTHON:CHECKOUT of PFLlib.")
flags.DEFINE_string("pgfed_authors", None, "PYTHON:CHECKOUT of the code of PGFed's authors.")
flags.DEFINE_string("pfl_research", None, "A Python with pfl-research and PyTorch.")
flags.DEFINE_string("fedjax", None, "A Python with fedjax.")
flags.DEFINE_string("flower", None, "A Python with Flower, its simulation, and PyTorch.")
_ALL_METHODS = driver.METHODS["tff_pfl"]
_METHODS = flags.DEFINE_list("methods", list(_ALL_METHODS), "Methods to run; see above.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Number of measured rounds.", lower_bound=1)
_CLIENTS = flags.DEFINE_integer(
    "clients", 100, "Number of clients in the federation.", lower_bound=1
)
_CLIENTS_PER_ROUND = flags.DEFINE_integer(
    "clients_per_round", 10, "Number of clients in a round.", lower_bound=1
)
_EXAMPLES_PER_CLIENT = flags.DEFINE_integer(
    "examples_per_client",
    500,
    "Number of examples of each client: a multiple of 50, or with --unequal their mean.",
    lower_bound=1,
)
_NETWORK = flags.DEFINE_enum("network", "cnn", list(NETWORKS), "Network; see above.")
_UNEQUAL = flags.DEFINE_bool("unequal", False, "Give clients unequal sizes; see above.")
_JIT_COMPILE = flags.DEFINE_bool("jit_compile", False, "Compile tff_pfl's client work by XLA.")
_TIME_LIMIT = flags.DEFINE_float(
    "time_limit", 600.0, "Seconds after which a start or a round has failed."
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    try:
        work = _work()
        contestants = _chosen(work)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    _print({"machine": hardware()})
    options, records = {"rounds": _ROUNDS.value, "time_limit": _TIME_LIMIT.value}, []
    try:
        with interruptible():
            for record in driver.compare(contestants, work, **options):
                _print(record)
                records.append(record)
    except KeyboardInterrupt as interruption:
        return exit_code(interruption)
    print(driver.markdown_table(records))
    return 1 if any("failed" in record for record in records) else 0


def _work():
    """Returns the work that the flags choose."""
    sizes = (_CLIENTS.value, _CLIENTS_PER_ROUND.value, _EXAMPLES_PER_CLIENT.value)
    unequal = {"epochs": 1, "batch_size": 20, "sigma": 1.0} if _UNEQUAL.value else {}
    return driver.Work(*sizes, network=_NETWORK.value, jit_compile=_JIT_COMPILE.value, **unequal)


def _chosen(work):
    """Returns the contestants that the flags choose, if they can do the work."""
    check_names("method", _METHODS.value, _ALL_METHODS)
    chosen = []
    for name, methods in driver.METHODS.items():
        where = {}
        if name not in driver.OWN:
            if flags.FLAGS[name].value is None:
                continue
            driver.check_work(name, work)
            where = driver.place(name, flags.FLAGS[name].value)
        for method in methods:
            if name == driver.BARE or method in _METHODS.value:
                chosen.append(driver.Contestant(name, method, **where))
    return chosen


def _print(record):
    print(to_json(record), flush=True)


if __name__ == "__main__":
    app.run(main)
