"""Measures what a round of federated learning costs, and what of it is training.

    benchmark.py [--workloads=linear,cnn,resnet18] [--contenders=A,B] [--clients=N]
        [--examples_per_client=N] [--batch_size=N]
    benchmark.py --scaling [--runtimes=graph_vectorized] [--cohort_sizes=10,100]
        [--populations=100,1000]
    benchmark.py --runs [--populations=10000,1000000]
    benchmark.py --start [--algorithms=A,B]
    benchmark.py --descent [--online=10,50,100] [--networks=mlp,cnn]
    benchmark.py --pgfed_server [--population=1000] [--clients=50]
    benchmark.py --branches [--num_branches=5]
    benchmark.py --aggregators [--clients=20]
    benchmark.py --unequal [--clients=100] [--examples_per_client=20] [--batch_size=20]
    benchmark.py --pooled [--clients=100] [--examples_per_client=100] [--clients_per_turn=10]

Prints JSON lines: the machine; then, of each workload, a line a contender with the seconds that a
round of federated averaging takes, and a line with the ratios of their medians. Contenders take
turns, a round each. Of a contender that runs alone, there is also the memory of the process at its
peak. Workloads:

    linear  logistic regression, 784 -> 10, on synthetic images: 100 clients with 20 examples,
            one step each
    cnn     PGFed's CNN on synthetic 32x32x3 images: 10 clients with 500 examples, 5 epochs,
            batches of 50
    resnet18  ResNet-18 with group normalisation on synthetic 32x32x3 images: 2 clients with 64
            examples, batches of 32

Contenders; without --contenders, each workload has its own choice of them:

    bare_tensorflow           a plain TensorFlow loop over clients, without TFF or this library
    bare_keras                the same with Keras' layers and variables
    bare_keras_plgu_lf        likewise PLGU-LF, with two gradients a step
    tff_pfl_RUNTIME           this library's FedAvg on one of the runtimes below
    tff_pfl_4_segments, tff_pfl_bfloat16, tff_pfl_bfloat16_4_segments
                              the same on `graph_loop`, with options of the model
    plgu_lf_4_segments, plgu_lf_bfloat16, plgu_lf_bfloat16_4_segments
                              likewise PLGU-LF
    tff_learning_cpp_runtime  tff.learning's FedAvg on tf.data clients, on TFF's stock runtime
    tff_learning_graph_loop   the same, on the graph executor
    ALGORITHM                 an algorithm of this library, such as pgfed, on the graph executor
                              with a loop over clients; its first round must train as FedAvg's

Runtimes:

    cpp_runtime       TFF's stock C++ runtime
    graph_loop        the graph executor, with a loop over clients
    graph_vectorized  the graph executor, with all clients at once; for `cnn` on GPUs only
    graph_xla         the same, compiled by XLA

With --scaling, prints instead a line for each size of cohorts and of the federation, of Ditto on
the model and data of `linear`: the time of a round and of its parts, and the memory at its peak.
All clients have states on disk, in a directory that is removed afterwards (see TMPDIR): 3.1 GiB
for 100,000 clients.

With --runs, prints a line for each size of the federation of a whole run of training, of
--algorithm on the model of `linear` with a cohort of 100: milliseconds of a round and of its parts
(medians of its `timings.csv`), seconds to start, to evaluate 1,000 sampled clients and to resume,
memory at its peak, and what is on disk. Only clients that took part have states; the data are
memory-mapped.

With --start, prints a line for `--help`, for refused flags and for each of --algorithms, trained
for a round on handwritten digits: the seconds of --rounds whole processes, and by how much they
exceed those of importing TensorFlow and TFF, which are taken before each.

With --descent, prints a line for each size of cohorts of FedPG, whose server remembers the
gradients of seven times as many clients: the time of a round, and of its quadratic program alone.

With --pgfed_server, prints a line of PGFed on logistic regression: the time of a round, and of all
that its server does: the messages of each client, and the new state.

With --branches, prints a line for each kind of local step of pFedMB's LeNet: an ordinary one, one
of the weights of all branches, and one of the coefficients that mix them.

With --aggregators, prints a line for each aggregator by name, and for each compressor, with error
feedback and without: the seconds of a round of FedAvg, how many times those of the plain mean they
are, and the bytes that a client sends. More than 10 clients are needed, by those with noise.

With --unequal, prints a line for each of three networks and three spreads of sizes, of FedAvg with
clients of lognormal sizes: the seconds of a round with each client's own rows, and padded to the
largest client's.

With --pooled, prints a line of the evaluation of every client's own model, PGFed's CNN, on the test
examples of all clients: its seconds for some clients at a time, those of the bare forward passes of
the same models, which are taken before each, and the median of their ratios.
"""

import dataclasses

from absl import app, flags

import benchmarks
from tff_pfl.files import to_json
from tff_pfl.names import unknown_name
from tff_pfl.runtime.startup import announce_tensorflow, prepare_process

prepare_process()

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
_BATCH_SIZE = flags.DEFINE_integer(
    "batch_size", None, "Instead of the workload's own number.", lower_bound=1
)
flags.DEFINE_bool("scaling", False, "Measure cohorts and federations of many sizes.")
_RUNTIMES = flags.DEFINE_list("runtimes", ["graph_vectorized"], "Of --scaling, see above.")
_COHORT_SIZES = flags.DEFINE_list(
    "cohort_sizes",
    ["10", "30", "100", "300", "1000"],
    "Of --scaling: cohorts of a federation as large as the largest of them.",
)
flags.DEFINE_bool("runs", False, "Measure whole runs in federations of many sizes.")
_POPULATIONS = flags.DEFINE_list(
    "populations",
    ["100", "1000", "10000", "100000"],
    "Of --scaling and --runs: federations with a cohort of 100, or of all clients if they are "
    "fewer.",
)
flags.DEFINE_bool("start", False, "Measure what programs take to start.")
_STARTED = ["fedavg", "ditto", "pgfed", "plgu_lf", "pfedmb", "fedpg", "s_fedpg", "fedfomo"]
_ALGORITHMS = flags.DEFINE_list("algorithms", _STARTED, "Of --start: algorithms by name.")
_ALGORITHM = flags.DEFINE_string("algorithm", "ditto", "Of --runs: an algorithm by its name.")
flags.DEFINE_bool("descent", False, "Measure FedPG in cohorts of many sizes.")
_ONLINE = flags.DEFINE_list("online", ["10", "50", "100"], "Of --descent: clients a round.")
_NETWORKS = flags.DEFINE_list(
    "networks", list(benchmarks.DESCENT_WORKLOADS), "Of --descent: FedPG's networks."
)
flags.DEFINE_bool("pgfed_server", False, "Measure the server of PGFed.")
_POPULATION = flags.DEFINE_integer(
    "population", 1000, "Of --pgfed_server: clients of the federation.", lower_bound=1
)
flags.DEFINE_bool("branches", False, "Measure local steps of pFedMB.")
_NUM_BRANCHES = flags.DEFINE_integer(
    "num_branches", 5, "Of --branches: branches of each layer.", lower_bound=1
)
flags.DEFINE_bool("aggregators", False, "Measure aggregators and compressors.")
flags.DEFINE_bool("unequal", False, "Measure clients of unequal sizes.")
flags.DEFINE_bool("pooled", False, "Measure evaluations on the examples of all clients.")
_CLIENTS_PER_TURN = flags.DEFINE_integer(
    "clients_per_turn", 10, "Of --pooled: clients evaluated at a time.", lower_bound=1
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    chosen = (measure for name, measure in _MEASUREMENTS.items() if flags.FLAGS[name].value)
    measure = next(chosen, _contenders)
    announce_tensorflow()
    _print(benchmarks.machine())
    for record in measure():
        _print(record)


def _start():
    return benchmarks.measure_start(_ALGORITHMS.value, repetitions=_ROUNDS.value)


def _scaling():
    points = benchmarks.scaling_points(
        _RUNTIMES.value,
        _adapted(benchmarks.WORKLOADS["linear"]),
        cohort_sizes=list(map(int, _COHORT_SIZES.value)),
        populations=list(map(int, _POPULATIONS.value)),
        rounds=_ROUNDS.value,
        warmup=_WARMUP.value,
    )
    return benchmarks.measure_scaling(points)


def _runs():
    return benchmarks.measure_runs(
        benchmarks.TrainingRun(
            _adapted(benchmarks.WORKLOADS["linear"]),
            int(population),
            _ROUNDS.value,
            _WARMUP.value,
            _ALGORITHM.value,
        )
        for population in _POPULATIONS.value
    )


def _descent():
    for name in _NETWORKS.value:
        workload = _adapted(benchmarks.DESCENT_WORKLOADS[name])
        sizes = list(map(int, _ONLINE.value))
        yield from benchmarks.measure_descent(name, workload, sizes, rounds=_ROUNDS.value)


def _pgfed_server():
    workload, population = _adapted(benchmarks.MANY_CLIENTS), _POPULATION.value
    return [benchmarks.measure_pgfed_server(workload, population, rounds=_ROUNDS.value)]


def _branches():
    workload, branches = _adapted(benchmarks.BRANCHED), _NUM_BRANCHES.value
    return benchmarks.measure_branches(workload, branches, rounds=_ROUNDS.value)


def _aggregators():
    workload = _adapted(benchmarks.AGGREGATED)
    return benchmarks.measure_aggregators(workload, rounds=_ROUNDS.value)


def _unequal():
    workload = _adapted(benchmarks.WORKLOADS["linear"])
    return benchmarks.measure_unequal(workload, rounds=_ROUNDS.value)


def _pooled():
    return [benchmarks.measure_pooled(_adapted(benchmarks.POOLED), _CLIENTS_PER_TURN.value)]


def _contenders():
    for name in _WORKLOADS.value:
        workload = _adapted(benchmarks.WORKLOADS[name])
        contenders = _CONTENDERS.value or workload.default_contenders()
        yield from benchmarks.measure(
            name, workload, contenders, rounds=_ROUNDS.value, warmup=_WARMUP.value
        )


def _adapted(workload):
    """A workload with the numbers that flags give."""
    numbers = {
        "clients": _CLIENTS.value,
        "examples_per_client": _EXAMPLES_PER_CLIENT.value,
        "batch_size": _BATCH_SIZE.value,
    }
    given = {key: value for key, value in numbers.items() if value is not None}
    return dataclasses.replace(workload, **given)


def _print(record):
    print(to_json(record), flush=True)


_MEASUREMENTS = {
    "start": _start,
    "scaling": _scaling,
    "runs": _runs,
    "descent": _descent,
    "pgfed_server": _pgfed_server,
    "branches": _branches,
    "aggregators": _aggregators,
    "unequal": _unequal,
    "pooled": _pooled,
}


def _names_are_in(kind, table):
    """A validator by a table of `benchmarks`, whose module may import TensorFlow."""

    def check(names):
        if names is None:
            return True
        valid = getattr(benchmarks, table)
        for name in names:
            if name not in valid:
                raise flags.ValidationError(unknown_name(kind, name, valid))
        return True

    return check


def _are_algorithms(names):
    """Those that are known here are not looked up, which would import TensorFlow."""
    return set(names) <= set(_STARTED) or _names_are_in("algorithm", "ALGORITHMS")(names)


def _are_sizes(sizes):
    return all(size.isdecimal() and int(size) > 0 for size in sizes)


flags.mark_bool_flags_as_mutual_exclusive(list(_MEASUREMENTS))
flags.register_validator("workloads", _names_are_in("workload", "WORKLOADS"))
flags.register_validator("contenders", _names_are_in("contender", "CONTENDERS"))
flags.register_validator("algorithm", lambda name: _are_algorithms([name]))
flags.register_validator("algorithms", _are_algorithms)
flags.register_validator("networks", _names_are_in("network", "DESCENT_WORKLOADS"))
flags.register_validator("runtimes", _names_are_in("runtime", "RUNTIMES"))
for name in ("cohort_sizes", "populations", "online"):
    flags.register_validator(name, _are_sizes, "Sizes are positive integers.")

if __name__ == "__main__":
    app.run(main)
