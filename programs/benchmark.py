"""Measures what a round of federated averaging costs, and what of it is training.

    benchmark.py [--workloads=linear,cnn] [--rounds=5] [--clients=N] [--examples_per_client=N]

Prints JSON lines: the machine; then, of each workload, a line a contender with the seconds a round
takes and a line with the ratios of their medians. Contenders take turns, a round each. Workloads:

    linear  logistic regression, 784 -> 10, on synthetic images: 100 clients with 20 examples,
            one step each
    cnn     PGFed's CNN on synthetic 32x32x3 images: 10 clients with 500 examples, 5 epochs,
            batches of 50

Contenders:

    bare_tensorflow           a plain TensorFlow loop over clients, without TFF or this library
    tff_pfl_cpp_runtime       this library's FedAvg on TFF's stock C++ runtime
    tff_learning_cpp_runtime  tff.learning's FedAvg on tf.data clients, on the same runtime; in
                              `cnn` only if it is asked for
"""

import dataclasses
import json

from absl import app, flags

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from tff_pfl import benchmarks, runtime  # noqa: E402
from tff_pfl.names import unknown_name  # noqa: E402

_WORKLOADS = flags.DEFINE_list("workloads", list(benchmarks.WORKLOADS), "What is run, see above.")
_CONTENDERS = flags.DEFINE_list(
    "contenders", None, "Who runs it, see above; by default the workload's own choice."
)
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds that are counted.", lower_bound=1)
_WARMUP = flags.DEFINE_integer("warmup", 1, "Rounds before them that are not.", lower_bound=0)
_CLIENTS = flags.DEFINE_integer(
    "clients", None, "Clients a round, instead of the workload's own number.", lower_bound=1
)
_EXAMPLES_PER_CLIENT = flags.DEFINE_integer(
    "examples_per_client", None, "Instead of the workload's own number.", lower_bound=1
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    chosen = {
        "clients": _CLIENTS.value,
        "examples_per_client": _EXAMPLES_PER_CLIENT.value,
        "contenders": _CONTENDERS.value,
    }
    chosen = {key: value for key, value in chosen.items() if value is not None}
    runtime.set_cpp_context()
    _print(benchmarks.machine())
    for name in _WORKLOADS.value:
        workload = dataclasses.replace(benchmarks.WORKLOADS[name], **chosen)
        for record in benchmarks.measure(
            name, workload, rounds=_ROUNDS.value, warmup=_WARMUP.value
        ):
            _print(record)


def _print(record):
    print(json.dumps(record), flush=True)


def _names_are_in(kind, valid):
    def check(names):
        for name in names or ():
            if name not in valid:
                raise flags.ValidationError(unknown_name(kind, name, valid))
        return True

    return check


flags.register_validator("workloads", _names_are_in("workload", benchmarks.WORKLOADS))
flags.register_validator("contenders", _names_are_in("contender", benchmarks.CONTENDERS))

if __name__ == "__main__":
    app.run(main)
