"""Counts what a round costs besides its mathematics, which bounds small rounds on GPUs.

Counts come from a profile of one round. They depend on the graph, not on the machine: results stay
tensors, as on GPUs.
"""

import collections
import dataclasses
import pathlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.workloads import Workload, cohort_of, installed
from tff_pfl import runtime
from tff_pfl.numerics import host
from tff_pfl.runtime.graph import memory
from tff_pfl.runtime.graph.lowering import CLIENT_WORK

_RUNTIMES = {"vectorized": {}, "xla": {"jit_compile": True}}
_WARMUP = 3
# Names in profiles.
_ROUND = "round"
_CALL = "EagerLocalExecute: __inference_"
_TO_DEVICE = "tf.constant"
# Operations without a kernel of their own on a device.
_FREE = ("_Arg", "_Retval", "Const", "NoOp", "Identity", "LoopCond")
_FREE += ("Merge", "Switch", "Enter", "Exit", "NextIteration")
# The parts of a round, by the first pattern that the names of their operations match.
_SCOPES = {
    "host_operations": re.compile(rf"(^|/){host.SCOPE}(_\d+)?/"),
    "client_operations": re.compile(rf"(^|/){CLIENT_WORK}(_\d+)?/"),
    "operations": re.compile(""),
}


class _Event(NamedTuple):
    """An event of a profile, with its start and end in milliseconds."""

    name: str
    start: float
    end: float


def measure(
    workload: Workload, algorithms: Sequence[str], cohort_sizes: Sequence[int], rounds: int
) -> Iterator[dict[str, Any]]:
    """Yields a record of a round for each size of cohort and algorithm, with and without XLA.

    Yields:
        Records. `client_operations` are those of client work; what XLA compiled counts as one.
        `host_operations` are others that are placed on the CPU, and `operations` the rest. `calls`
        are of functions. `to_device` and `from_device` are the numbers of transfers, with their
        bytes. `ms` are minima: `before` and `after` the function is Python.
    """
    for clients in cohort_sizes:
        for algorithm in algorithms:
            for name, options in _RUNTIMES.items():
                context = runtime.create_graph_context(
                    vectorize="always", keep_tensors=True, **options
                )
                cohort = dataclasses.replace(workload, clients=clients)
                counts = _counts(_rounds(cohort, algorithm, context), rounds)
                yield {"fixed_cost": algorithm, "runtime": name, "clients": clients, **counts}


def _rounds(workload, algorithm, context) -> Callable[[], tuple]:
    """Returns a function that runs the next round, and returns the cohort and its output."""
    with installed(context):
        process = workload.process(algorithm)
        state, cohort = process.initialize(), cohort_of(process, *workload.data())

    def run():
        nonlocal state, cohort
        given = cohort
        with installed(context), tf.profiler.experimental.Trace(_ROUND):
            output = process.next(state, given)
        state = output.state
        pairs = zip(given, output.clients, strict=True)
        cohort = [client._replace(state=kept) for client, kept in pairs]
        return given, output

    for _ in range(_WARMUP):
        run()
    return run


def _counts(run, rounds: int) -> dict[str, Any]:
    """Returns the counts of the next round, and the times of the rounds after it."""
    with mock.patch.object(memory, "as_tensor", wraps=memory.as_tensor) as copied:
        events, (cohort, output) = _profile(run, level=3)
    names = [event.name for event in events]
    kinds = collections.Counter()
    for name in names:
        operation, _, kind = name.rpartition(":")
        if _is_operation(operation, kind):
            kinds[next(part for part, scope in _SCOPES.items() if scope.search(operation))] += 1
    resident = [leaf for leaf in tf.nest.flatten(output.state) if isinstance(leaf, tf.Tensor)]
    results = sum(name.endswith(":_Retval") for name in names)
    timed = [_times(_profile(run, level=2)[0]) for _ in range(rounds)]
    return {
        **{part: kinds[part] for part in reversed(_SCOPES)},
        "calls": sum(name.startswith(_CALL) for name in names),
        "to_device": names.count(_TO_DEVICE) + copied.call_count,
        "bytes_to_device": _host_bytes(cohort),
        "from_device": results - len(resident),
        "bytes_from_device": _host_bytes((output.clients, output.metrics)),
        "ms": {part: round(min(times[part] for times in timed), 3) for part in timed[0]},
    }


def _is_operation(name: str, kind: str) -> bool:
    """Returns whether `name:kind` in a profile is an operation with a kernel of its own."""
    return bool(name) and name[-1] != ":" and kind.strip("_").isidentifier() and kind not in _FREE


def _host_bytes(value) -> int:
    """Returns the bytes of the leaves that are not tensors of a device."""
    leaves = tf.nest.flatten(value)
    return sum(np.asarray(leaf).nbytes for leaf in leaves if not isinstance(leaf, tf.Tensor))


def _times(events) -> dict[str, float]:
    """Returns the milliseconds of a round before, in and after its function."""
    whole = next(event for event in events if event.name == _ROUND)
    call = next(event for event in events if event.name.startswith(_CALL))
    return {
        "before": call.start - whole.start,
        "function": call.end - call.start,
        "after": whole.end - call.end,
    }


def _profile(run, level: int) -> tuple[list[_Event], Any]:
    """Runs a function under TensorFlow's profiler; returns the events and the result."""
    options = tf.profiler.experimental.ProfilerOptions(level, python_tracer_level=0)
    with tempfile.TemporaryDirectory(prefix="benchmark_") as folder:
        with tf.profiler.experimental.Profile(folder, options=options):
            result = run()
        (path,) = pathlib.Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace.FromString(path.read_bytes())
    events = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                start = line.timestamp_ns / 1e6 + event.offset_ps / 1e9
                events.append(_Event(name, start, start + event.duration_ps / 1e9))
    return events, result
