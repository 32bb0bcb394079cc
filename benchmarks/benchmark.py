"""Measures the cost of a round of federated learning, and how much of it is training.

    benchmark.py [--workloads=linear,cnn,resnet18] [--contenders=A,B] [--clients=N]
        [--examples_per_client=N] [--batch_size=N]
    benchmark.py --scaling [--cohort_sizes=10,100] [--populations=100,1000]
    benchmark.py --runs [--populations=10000,1000000] [--algorithm=ditto]
    benchmark.py --start [--algorithms=A,B]
    benchmark.py --descent [--cohort_sizes=10,50,100] [--networks=mlp,cnn]
    benchmark.py --pgfed_server | --aggregators | --unequal

Prints JSON lines: the machine; then, for each workload, a line for each contender with the seconds
of a round of federated averaging, and a line with the ratios of their medians. Contenders take
turns, a round each. If a contender runs alone, that last line has the peak memory of the process
instead. Workloads:

    linear  logistic regression, 784 -> 10, on synthetic images: 100 clients with 20 examples,
            one step each
    cnn     PGFed's CNN on synthetic 32x32x3 images: 10 clients with 500 examples, 5 epochs,
            batches of 50
    resnet18  ResNet-18 with group normalisation on synthetic 32x32x3 images: 2 clients with 64
            examples, batches of 32

Contenders, of which each workload has its own choice unless --contenders is given:

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

The other measurements print a line for each case instead:

    --scaling       each size of cohorts and federations, with Ditto on the model and data of
                    `linear`: a round and its parts, and the peak memory. All clients have states on
                    disk, in a directory that is removed afterwards (see TMPDIR): 3.1 GiB for
                    100,000 clients
    --runs          each size of federations, with a run of --algorithm on the model of `linear` and
                    a cohort of 100: a round and its parts, seconds to start, to evaluate 1,000
                    sampled clients and to resume, memory, and sizes on disk
    --start         `--help`, refused flags and each of --algorithms, trained for a round on
                    handwritten digits: the seconds of --rounds whole processes, and by how much
                    they exceed those of importing TensorFlow and TFF, which are taken before each
    --descent       each size of cohorts of FedPG, whose server remembers the gradients of seven
                    times as many clients: a round, and its quadratic program alone
    --pgfed_server  PGFed on logistic regression: a round, and all that its server does
    --aggregators   each aggregator, and each compressor with error feedback and without: a round of
                    FedAvg beside the plain mean's, and the bytes that a client sends; aggregators
                    with noise need more than 10 clients
    --unequal       each network and spread of sizes, with FedAvg and clients of lognormal sizes: a
                    round with each client's own rows, and with rows padded to the largest client's
"""

import dataclasses
import pathlib
import sys

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from benchmarks import timing, workloads
from tff_pfl.files import to_json
from tff_pfl.names import check_names
from tff_pfl.runtime.startup import announce_tensorflow, prepare_process

prepare_process()


_OWN = "Instead of the workload's own number."
_WORKLOADS = flags.DEFINE_list("workloads", list(workloads.WORKLOADS), "What is run, see above.")
_CONTENDERS = flags.DEFINE_list("contenders", None, "Who runs it, see above.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "Rounds that are counted.", lower_bound=1)
_WARMUP = flags.DEFINE_integer("warmup", 1, "Rounds before them that are not.", lower_bound=0)
_CLIENTS = flags.DEFINE_integer("clients", None, _OWN, lower_bound=1)
_EXAMPLES = flags.DEFINE_integer("examples_per_client", None, _OWN, lower_bound=1)
_BATCH_SIZE = flags.DEFINE_integer("batch_size", None, _OWN, lower_bound=1)
_COHORT_SIZES = flags.DEFINE_list("cohort_sizes", None, "Of --scaling and --descent.")
_POPULATIONS = flags.DEFINE_list(
    "populations", ["100", "1000", "10000", "100000"], "Of --scaling and --runs: federations."
)
_ALGORITHMS = flags.DEFINE_list(
    "algorithms",
    ["fedavg", "ditto", "pgfed", "plgu_lf", "pfedmb", "fedpg", "s_fedpg", "fedfomo"],
    "Of --start: algorithms by name.",
)
_ALGORITHM = flags.DEFINE_string("algorithm", "ditto", "Of --runs: an algorithm by its name.")
_NETWORKS = flags.DEFINE_list(
    "networks", list(workloads.DESCENT_WORKLOADS), "Of --descent: FedPG's networks."
)


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    chosen = (measure for name, measure in _MEASUREMENTS.items() if flags.FLAGS[name].value)
    announce_tensorflow()
    _print(_machine())
    try:
        for record in next(chosen, _contenders)():
            _print(record)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _machine():
    import tensorflow as tf
    import tensorflow_federated as tff

    gpus = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    of_gpus = {"gpus": [gpu.get("device_name") for gpu in gpus]}
    versions = {"tensorflow": tf.__version__, "tff": tff.__version__}
    return {"machine": {**timing.hardware(), **of_gpus, **versions}}


def _contenders():
    from benchmarks.contenders import default_contenders, measure

    for name in _WORKLOADS.value:
        contenders = _CONTENDERS.value or default_contenders(name)
        workload = _adapted(workloads.WORKLOADS[name])
        yield from measure(name, workload, contenders, **_rounds_and_warmup())


def _scaling():
    from benchmarks.growth import measure_scaling

    return measure_scaling(
        cohort_sizes=_sizes(_COHORT_SIZES.value or [10, 30, 100, 300, 1000]),
        populations=_sizes(_POPULATIONS.value),
        workload=_adapted(workloads.WORKLOADS["linear"]),
        algorithm="ditto",
        **_rounds_and_warmup(),
    )


def _runs():
    from benchmarks.growth import measure_runs

    return measure_runs(
        populations=_sizes(_POPULATIONS.value),
        workload=_adapted(workloads.WORKLOADS["linear"]),
        algorithm=_ALGORITHM.value,
        **_rounds_and_warmup(),
    )


def _start():
    from benchmarks.start import measure_start

    return measure_start(_ALGORITHMS.value, rounds=_ROUNDS.value)


def _descent():
    from benchmarks.pieces import measure_descent

    for name in _NETWORKS.value:
        workload = _adapted(workloads.DESCENT_WORKLOADS[name])
        sizes = _sizes(_COHORT_SIZES.value or [10, 50, 100])
        yield from measure_descent(name, workload, sizes, rounds=_ROUNDS.value)


def _pgfed_server():
    from benchmarks.pieces import measure_pgfed_server

    return measure_pgfed_server(_adapted(workloads.MANY_CLIENTS), rounds=_ROUNDS.value)


def _aggregators():
    from benchmarks.pieces import measure_aggregators

    return measure_aggregators(_adapted(workloads.AGGREGATED), rounds=_ROUNDS.value)


def _unequal():
    from benchmarks.pieces import measure_unequal

    return measure_unequal(_adapted(workloads.WORKLOADS["linear"]), rounds=_ROUNDS.value)


def _rounds_and_warmup():
    return {"rounds": _ROUNDS.value, "warmup": _WARMUP.value}


def _adapted(workload):
    """Returns a workload with the numbers that flags give."""
    changed = (_CLIENTS, _EXAMPLES, _BATCH_SIZE)
    given = {flag.name: flag.value for flag in changed if flag.value is not None}
    return dataclasses.replace(workload, **given)


def _sizes(values):
    return [int(value) for value in values]


def _print(record):
    print(to_json(record), flush=True)


_MEASUREMENTS = {
    "scaling": _scaling,
    "runs": _runs,
    "start": _start,
    "descent": _descent,
    "pgfed_server": _pgfed_server,
    "aggregators": _aggregators,
    "unequal": _unequal,
}
flags.DEFINE_bool("scaling", False, "Measure cohorts and federations of many sizes.")
flags.DEFINE_bool("runs", False, "Measure whole runs in federations of many sizes.")
flags.DEFINE_bool("start", False, "Measure what programs take to start.")
flags.DEFINE_bool("descent", False, "Measure FedPG in cohorts of many sizes.")
flags.DEFINE_bool("pgfed_server", False, "Measure the server of PGFed.")
flags.DEFINE_bool("aggregators", False, "Measure aggregators and compressors.")
flags.DEFINE_bool("unequal", False, "Measure clients of unequal sizes.")
flags.mark_bool_flags_as_mutual_exclusive(list(_MEASUREMENTS))


def _names_are_in(kind, table):
    def check(names):
        check_names(kind, names, table, error=flags.ValidationError)
        return True

    return check


flags.register_validator("workloads", _names_are_in("workload", workloads.WORKLOADS))
flags.register_validator("networks", _names_are_in("network", workloads.DESCENT_WORKLOADS))
for name in ("cohort_sizes", "populations"):
    flags.register_validator(
        name,
        lambda sizes: all(size.isdecimal() and int(size) > 0 for size in sizes or []),
        "Sizes are positive integers.",
    )

if __name__ == "__main__":
    app.run(main)
