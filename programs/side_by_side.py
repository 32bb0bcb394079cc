"""Measures a round of this library beside the same work by other frameworks, on this machine.

    side_by_side.py [--pfllib=PYTHON:CHECKOUT] [--pgfed_authors=PYTHON:CHECKOUT]
        [--pfl_research=PYTHON] [--fedjax=PYTHON] [--flower=PYTHON] [--methods=fedavg,ditto]

A framework takes part if it is named: PYTHON is the interpreter of an environment that has it, and
CHECKOUT the folder of its repository, where it is no package. docs/side_by_side.md says how to get
each. This library and a bare TensorFlow loop of FedAvg always take part. Methods:

    bare_tensorflow  fedavg; a loop without any framework, which others are compared with
    tff_pfl          fedavg, fedrep, ditto, apfl, pgfed
    pfllib           fedavg, fedrep, ditto, apfl; needs a checkout
    pgfed_authors    pgfed; needs a checkout
    pfl_research     fedavg
    fedjax           fedavg, apfl
    flower           fedavg; its simulation with a client in PyTorch

A round is the same for all: 10 of 100 clients with 500 synthetic 32x32x3 images, 5 epochs for each
model that a method trains, batches of 50, SGD, on PGFed's CNN, on the CPU. Each framework selects
clients, loads data and keeps what clients keep in its own way, in its own loop of training;
evaluations are left out. Threads are what the framework takes by default.

Each contestant is a process. They are started one by one, with a round each that does not count,
and then take turns, a round each; while one runs, the others sleep. All of them are in memory at
the same time, about a gigabyte each.

Prints JSON lines: the machine; then, of each contestant, its versions, the seconds of its rounds,
and how many times the bare loop's median theirs is. One that fails is printed with the end of what
it wrote to its standard error, and does not stop the others; the exit code is then 1. A Markdown
table of all comes last.
"""

from absl import app, flags

import contestants
from tff_pfl.experiment.interruption import exit_code, interruptible
from tff_pfl.files import to_json
from tff_pfl.names import unknown_name

_FOREIGN = [name for name, framework in contestants.FRAMEWORKS.items() if framework.is_foreign]
_ALL_METHODS = contestants.FRAMEWORKS["tff_pfl"].methods
flags.DEFINE_string("pfllib", None, "PYTHON:CHECKOUT of PFLlib.")
flags.DEFINE_string("pgfed_authors", None, "PYTHON:CHECKOUT of the code of PGFed's authors.")
flags.DEFINE_string("pfl_research", None, "A Python with pfl-research and PyTorch.")
flags.DEFINE_string("fedjax", None, "A Python with fedjax.")
flags.DEFINE_string("flower", None, "A Python with Flower, its simulation, and PyTorch.")
_METHODS = flags.DEFINE_list("methods", list(_ALL_METHODS), "Methods that are measured, see above.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds that are counted.", lower_bound=1)
_CLIENTS = flags.DEFINE_integer("clients", 100, "Clients of the federation.", lower_bound=1)
_CLIENTS_PER_ROUND = flags.DEFINE_integer(
    "clients_per_round", 10, "Clients of a round.", lower_bound=1
)
_EXAMPLES_PER_CLIENT = flags.DEFINE_integer(
    "examples_per_client", 500, "All clients have as many, full batches of 50.", lower_bound=50
)
_TIME_LIMIT = flags.DEFINE_float(
    "time_limit", 600.0, "Seconds to start, and for a round, until a contestant has failed."
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    work = contestants.Work(
        clients=_CLIENTS.value,
        clients_per_round=_CLIENTS_PER_ROUND.value,
        examples_per_client=_EXAMPLES_PER_CLIENT.value,
    )
    _print(contestants.machine())
    records = []
    try:
        with interruptible():
            for record in contestants.compare(
                _chosen(), work, rounds=_ROUNDS.value, time_limit=_TIME_LIMIT.value
            ):
                _print(record)
                records.append(record)
    except KeyboardInterrupt as interruption:
        return exit_code(interruption)
    print(contestants.markdown_table(records))
    return 1 if any("failed" in record for record in records) else 0


def _chosen():
    """The contestants that the flags name."""
    chosen = []
    for name, framework in contestants.FRAMEWORKS.items():
        where = {}
        if framework.is_foreign:
            if flags.FLAGS[name].value is None:
                continue
            where = contestants.place(name, flags.FLAGS[name].value)
        is_wanted = {contestants.BARE: framework.methods}.get(name, _METHODS.value)
        chosen += [
            contestants.Contestant(name, method, **where)
            for method in framework.methods
            if method in is_wanted
        ]
    return chosen


def _print(record):
    print(to_json(record), flush=True)


def _is_there(framework):
    def check(where):
        try:
            return where is None or bool(contestants.place(framework, where))
        except ValueError as error:
            raise flags.ValidationError(str(error)) from error

    return check


@flags.multi_flags_validator(["clients", "clients_per_round", "examples_per_client"])
def _are_sizes(sizes):
    try:
        return bool(contestants.Work(**sizes))
    except ValueError as error:
        raise flags.ValidationError(str(error)) from error


@flags.validator("methods")
def _are_methods(methods):
    for method in methods:
        if method not in _ALL_METHODS:
            raise flags.ValidationError(unknown_name("method", method, _ALL_METHODS))
    return True


for name in _FOREIGN:
    flags.register_validator(name, _is_there(name))

if __name__ == "__main__":
    app.run(main)
