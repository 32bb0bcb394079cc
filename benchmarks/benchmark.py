"""Measures what a round of federated learning costs, and how much of that is training.

    benchmark.py [--workloads=linear,cnn,resnet18] [--contenders=A,B] [--clients=N]
        [--examples_per_client=N] [--batch_size=N]
    benchmark.py --scaling [--cohort_sizes=10,100] [--populations=100,1000]
    benchmark.py --unequal_of_many [--cohort_sizes=1000] [--populations=10000]
    benchmark.py --runs [--populations=10000,1000000] [--algorithm=ditto]
    benchmark.py --start [--algorithms=A,B]
    benchmark.py --descent [--cohort_sizes=10,50,100] [--networks=mlp,cnn]
    benchmark.py --unequal [--cohort_sizes=10,100] [--networks=linear,lstm,ratings]
    benchmark.py --rates [--algorithms=A,B]
    benchmark.py --lanes [--cohort_sizes=10,30,100]
    benchmark.py --fixed_cost [--cohort_sizes=10,100]
    benchmark.py --adapters [--megabytes=25,100,400] [--cohort_sizes=4]
    benchmark.py --pgfed_server | --aggregators

Prints JSON lines. The first line describes the machine. Each workload then has a line for each
contender, with the seconds of a round of federated averaging, and a line with the ratios of their
medians. Contenders take turns, one round each. For a single contender, the last line has the peak
memory of the process instead. Workloads:

    linear  logistic regression, 784 -> 10, on synthetic images: 100 clients with 20 examples,
            one step each
    cnn     PGFed's CNN on synthetic 32x32x3 images: 10 clients with 500 examples, 5 epochs,
            batches of 50
    resnet18  ResNet-18 with group normalisation on synthetic 32x32x3 images: 2 clients with 64
            examples, batches of 32

Contenders; each workload has its own default for --contenders:

    bare_tensorflow           a plain TensorFlow loop over clients, without TFF or this library
    bare_keras                the same with Keras' layers and variables
    bare_keras_plgu_lf        the same for PLGU-LF, with two gradients in each step
    tff_pfl_RUNTIME           this library's FedAvg on one of the runtimes below
    tff_pfl_4_segments, tff_pfl_bfloat16, tff_pfl_bfloat16_4_segments
                              the same on `graph_loop`, with options of the model
    plgu_lf_4_segments, plgu_lf_bfloat16, plgu_lf_bfloat16_4_segments
                              the same for PLGU-LF
    tff_learning_cpp_runtime  tff.learning's FedAvg on tf.data clients, on TFF's stock runtime
    tff_learning_graph_loop   the same on the graph executor
    ALGORITHM                 an algorithm of this library, such as pgfed, on the graph executor
                              with a loop over clients; its first round must train as FedAvg's

Runtimes:

    cpp_runtime       TFF's stock C++ runtime
    graph_loop        the graph executor, with a loop over clients
    graph_vectorized  the graph executor, with all clients at once; for `cnn` on GPUs only
    graph_compiled    the graph executor, with loops over clients compiled by XLA, on CPUs
    graph_xla         `graph_vectorized`, compiled by XLA

Other measurements print a line for each case:

    --scaling       a round of Ditto, its parts and the peak memory, for each size of cohort and
                    federation, on the model and data of `linear`. All clients have states on disk,
                    in a directory that is removed afterwards (see TMPDIR): 3.1 GiB for 100,000
                    clients
    --unequal_of_many  the same for clients of lognormal sizes (sigma 1), without and with
                    compilation, for each size of federation and of cohort
    --runs          a run of --algorithm for each size of federation, on the model of `linear` with
                    a cohort of 100: a round and its parts, the seconds to start, to evaluate 1,000
                    sampled clients and to resume, memory, and sizes on disk
    --start         the seconds of --rounds whole processes, and by how much they exceed an import
                    of TensorFlow and TFF, which is measured before each process: for `--help`,
                    refused flags, and a round of each of --algorithms on handwritten digits
    --descent       a round of FedPG, and its quadratic program alone, for each size of cohort. The
                    server remembers the gradients of seven times as many clients
    --pgfed_server  a round of PGFed on logistic regression, and the work of its server
    --aggregators   a round of FedAvg compared with the plain mean, and the bytes that a client
                    sends, for each aggregator and for each compressor with and without error
                    feedback. Aggregators with noise need more than 10 clients
    --unequal       a round of FedAvg on clients of lognormal sizes (sigma 1, mean 55, batches of
                    20), for each network and size of cohort: a bare TensorFlow loop over the same
                    batches, and this library's compiled loop (see docs/guides/runtime.md), its
                    loop, groups of clients of equal capacity, and clients side by side (see
                    docs/guides/gpus.md), not compiled and compiled. On a machine with other work,
                    compare the seconds of the processor. The CNN and the LSTM are measured in loops
                    alone. Networks:
                        linear   logistic regression, 784 -> 10
                        mlp      784 -> 200 -> 200 -> 10
                        cnn      PGFed's CNN
                        lstm     the next of 20 tokens: 100 -> 32, an LSTM of 64 units, -> 100. The
                                 bare loop unrolls it over tokens
                        ratings  of 100 users and 1,000 items: two embeddings -> 32 -> 32 -> 1
    --adapters      rounds of LoRA on frozen transformers of so many megabytes, and bare steps of
                    the same arithmetic: seconds, the peak memory of each process, and bytes. 20
                    clients of 16 sequences of 64 tokens, batches of 8
    --rates         a round of each of --algorithms beside one of FedAvg, in seconds and in
                    multiplications of matrix products, on 10 clients of lognormal sizes (sigma 1,
                    mean 400, batches of 50) and the network mlp of --unequal
    --lanes         how often XLA compiles 20 rounds of FedAvg on the model of `linear` with clients
                    side by side (see docs/guides/gpus.md), the steps of a round that follow one
                    another, and the steps of lanes relative to those of clients, beside groups of
                    clients of equal capacity; for clients of lognormal sizes (sigma 1, mean 55,
                    batches of 20), of Fashion-MNIST by Dir(.1), and of equal sizes
    --fixed_cost    what a round of FedAvg, Ditto, PGFed and FedPG on the model of `linear` costs
                    besides its mathematics, with and without XLA: operations outside of client
                    work, transfers between host and device, calls of functions, and the time before
                    and after the function. They are counted on CPUs as on GPUs
"""

import dataclasses
import pathlib
import sys

from absl import app, flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tff_pfl.runtime.startup import prepare_process

prepare_process()

import tensorflow as tf
import tensorflow_federated as tff

from benchmarks import (
    adapters,
    contenders,
    fixed_cost,
    growth,
    lanes,
    measurements,
    rates,
    timing,
    unequal,
)
from benchmarks.workloads import (
    AGGREGATED,
    DESCENT_WORKLOADS,
    MANY_CLIENTS,
    RATED,
    UNEQUAL_WORKLOADS,
    WORKLOADS,
)
from tff_pfl.algorithms import ALGORITHMS
from tff_pfl.arguments.names import check_names
from tff_pfl.output.files import to_json

_FIXED_COST = ["fedavg", "ditto", "pgfed", "fedpg"]
_OVERRIDE = "Replaces the workload's own number."
_STARTED = ["fedavg", "ditto", "pgfed", "plgu_lf", "pfedmb", "fedpg", "s_fedpg", "fedfomo"]
FLAGS = flags.FLAGS
flags.DEFINE_list("workloads", list(WORKLOADS), "Workloads to run; see above.")
flags.DEFINE_list("contenders", None, "Contenders to run; see above.")
flags.DEFINE_integer("rounds", 5, "Number of measured rounds.", lower_bound=1)
flags.DEFINE_integer("warmup", 1, "Number of rounds before the measured ones.", lower_bound=0)
flags.DEFINE_integer("clients", None, _OVERRIDE, lower_bound=1)
flags.DEFINE_integer("examples_per_client", None, _OVERRIDE, lower_bound=1)
flags.DEFINE_integer("batch_size", None, _OVERRIDE, lower_bound=1)
flags.DEFINE_list("cohort_sizes", None, "Sizes of cohorts, see above.")
flags.DEFINE_list(
    "populations", [100, 1000, 10000, 100000], "Sizes of federations, for --scaling and --runs."
)
flags.DEFINE_list("algorithms", None, "Names of algorithms, for --start and --rates.")
flags.DEFINE_string("algorithm", "ditto", "Name of the algorithm, for --runs.")
flags.DEFINE_list("megabytes", list(adapters.SIZES), "Sizes of networks, for --adapters.")
flags.DEFINE_list("networks", None, "Networks, for --descent and --unequal; default: all.")


def main(argv):
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    _print({"machine": _machine()})
    try:
        measure = next((name for name in _MEASUREMENTS if FLAGS[name].value), None)
        for record in _MEASUREMENTS.get(measure, _contenders)():
            _print(record)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _machine():
    gpus = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return {
        **timing.hardware(),
        "gpus": [gpu.get("device_name") for gpu in gpus],
        "tensorflow": tf.__version__,
        "tff": tff.__version__,
    }


def _contenders():
    check_names("workload", FLAGS.workloads, WORKLOADS)
    for name in FLAGS.workloads:
        chosen = FLAGS.contenders or contenders.default_contenders(name)
        workload = _adapted(WORKLOADS[name])
        yield from contenders.measure(
            name, workload, chosen, rounds=FLAGS.rounds, warmup=FLAGS.warmup
        )


def _descent():
    sizes = _sizes(FLAGS.cohort_sizes or [10, 50, 100])
    for name in _networks(DESCENT_WORKLOADS):
        workload = _adapted(DESCENT_WORKLOADS[name])
        yield from measurements.descent(name, workload, sizes, FLAGS.rounds)


def _unequal():
    for name in _networks(UNEQUAL_WORKLOADS):
        workload, sizes = UNEQUAL_WORKLOADS[name]
        sizes = _sizes(FLAGS.cohort_sizes or sizes)
        yield from unequal.measure(name, _adapted(workload), sizes, FLAGS.rounds)


def _rates():
    # FedBN needs normalisation layers, which the network lacks.
    names = FLAGS.algorithms or [name for name in ALGORITHMS if name != "fedbn"]
    check_names("algorithm", names, ALGORITHMS)
    return rates.measure(_adapted(RATED), names, FLAGS.rounds)


def _networks(known):
    names = FLAGS.networks or list(known)
    check_names("network", names, known)
    return names


def _point_options(algorithm):
    """Returns the arguments of `growth` that are the same for all points."""
    return {
        "populations": _sizes(FLAGS.populations),
        "workload": _adapted(WORKLOADS["linear"]),
        "algorithm": algorithm,
        "rounds": FLAGS.rounds,
        "warmup": FLAGS.warmup,
    }


def _adapted(workload):
    """Returns a workload with the numbers of the flags."""
    given = {name: FLAGS[name].value for name in ("clients", "examples_per_client", "batch_size")}
    given = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(workload, **given)


def _sizes(values):
    return [int(value) for value in values]


def _print(record):
    print(to_json(record), flush=True)


_MEASUREMENTS = {
    "scaling": lambda: growth.measure_scaling(
        _sizes(FLAGS.cohort_sizes or [10, 30, 100, 300, 1000]), **_point_options("ditto")
    ),
    "unequal_of_many": lambda: growth.measure_unequal(
        _sizes(FLAGS.cohort_sizes or [1000]), **_point_options("ditto")
    ),
    "runs": lambda: growth.measure_runs(**_point_options(FLAGS.algorithm)),
    "start": lambda: measurements.start(FLAGS.algorithms or _STARTED, FLAGS.rounds),
    "descent": _descent,
    "pgfed_server": lambda: measurements.pgfed_server(_adapted(MANY_CLIENTS), FLAGS.rounds),
    "aggregators": lambda: measurements.aggregators(_adapted(AGGREGATED), FLAGS.rounds),
    "unequal": _unequal,
    "rates": _rates,
    "adapters": lambda: adapters.measure(
        _sizes(FLAGS.megabytes), FLAGS.rounds, _sizes(FLAGS.cohort_sizes or [4])[0]
    ),
    "lanes": lambda: lanes.measure(
        _adapted(UNEQUAL_WORKLOADS["linear"][0]), _sizes(FLAGS.cohort_sizes or [10, 30, 100])
    ),
    "fixed_cost": lambda: fixed_cost.measure(
        _adapted(WORKLOADS["linear"]), _FIXED_COST, _sizes(FLAGS.cohort_sizes or [10]), FLAGS.rounds
    ),
}
flags.DEFINE_bool("scaling", False, "Measure cohorts and federations of many sizes.")
flags.DEFINE_bool("unequal_of_many", False, "Measure unequal clients of large federations.")
flags.DEFINE_bool("runs", False, "Measure whole runs in federations of many sizes.")
flags.DEFINE_bool("start", False, "Measure the time that programs take to start.")
flags.DEFINE_bool("descent", False, "Measure FedPG in cohorts of many sizes.")
flags.DEFINE_bool("pgfed_server", False, "Measure the server of PGFed.")
flags.DEFINE_bool("aggregators", False, "Measure aggregators and compressors.")
flags.DEFINE_bool("unequal", False, "Measure clients of unequal sizes.")
flags.DEFINE_bool("rates", False, "Measure algorithms beside FedAvg.")
flags.DEFINE_bool("adapters", False, "Measure adapters of large frozen networks.")
flags.DEFINE_bool("lanes", False, "Count the steps of clients side by side.")
flags.DEFINE_bool("fixed_cost", False, "Count what a round costs besides its mathematics.")
flags.mark_bool_flags_as_mutual_exclusive(list(_MEASUREMENTS))

if __name__ == "__main__":
    app.run(main)
