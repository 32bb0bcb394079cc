"""Measures one training by several machines: its rounds, and the bytes through their network.

    clusters.py [--engines=one,dask] [--machines=1,2,4,8] [--mbit=0,1000] [--rounds=6]
        [-- FLAGS of programs/train.py]

Prints a JSON line for each case: the seconds of the first round and of the later ones (their
median, minimum and maximum), and the bytes that a worker gets and sends in a later round (the mean
over workers of the median over rounds). Engines:

    one     one process of this machine
    dask    the workers of a Dask cluster

Each worker has a network of its own, of which a cable of --mbit megabits per second (0: as fast as
the kernel) leads to the program. Linux makes these networks; that needs root, `ip` and `tc`, and
touches no network of the machine. Workers share its processors, each on one core in turn, so that
more workers than cores show what they exchange, and not how fast they compute.
"""

import contextlib
import dataclasses
import itertools
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from absl import app, flags

_ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_ROOT))

from benchmarks.timing import hardware, spread
from tff_pfl.output.files import to_json

_INSIDE = "TFF_PFL_BENCHMARK_NETWORK"
_PORT = 8786
_BURST = "1mb"  # that a cable lets pass at once
_DEFAULT = [
    "--config=configs/pgfed.py:cifar10,100,fedavg",
    "--config.local.epochs=1",
    "--config.clients_per_round=10",
]
FLAGS = flags.FLAGS
flags.DEFINE_list("engines", ["one", "dask"], "Engines; see above.")
flags.DEFINE_list("machines", [2], "Numbers of workers.")
flags.DEFINE_list("mbit", [0], "Megabits per second of each cable; 0: as fast as the kernel.")
flags.DEFINE_integer("rounds", 6, "Number of rounds, the first included.", lower_bound=2)


@dataclasses.dataclass(frozen=True)
class Case:
    """A training.

    Attributes:
        engine: The name of the engine.
        machines: The number of workers.
        mbit: Megabits per second of each cable.
    """

    engine: str
    machines: int = 0
    mbit: int = 0


def main(argv):
    if os.environ.get(_INSIDE) is None:
        os.execvpe(
            "unshare", ["unshare", "--net", sys.executable, *sys.argv], {**os.environ, _INSIDE: "1"}
        )
    _run("ip", "link", "set", "lo", "up")
    training = argv[1:] or _DEFAULT
    print(to_json({"machine": hardware(), "training": training}), flush=True)
    for case in _cases():
        print(to_json({**dataclasses.asdict(case), **_measured(case, training)}), flush=True)


def _cases() -> Iterator[Case]:
    for engine in FLAGS.engines:
        if engine == "one":
            yield Case(engine)
        else:
            for machines, mbit in itertools.product(FLAGS.machines, FLAGS.mbit):
                yield Case(engine, int(machines), int(mbit))


def _measured(case, training):
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        run = os.path.join(folder, "run")
        command = [sys.executable, "programs/train.py", *training, f"--output_dir={run}"]
        command += [f"--config.rounds={FLAGS.rounds}", "--config.evaluation.every=0"]
        if case.engine == "dask":
            scheduler = ["-m", "distributed.cli.dask_scheduler", "--host=0.0.0.0", "--no-dashboard"]
            stack.enter_context(_process([sys.executable, *scheduler, f"--port={_PORT}"], folder))
            command.append(f"--scheduler={_program(0)}:{_PORT}")
        for i in range(case.machines):
            worker = ["-m", "distributed.cli.dask_worker", f"{_program(i)}:{_PORT}"]
            worker += [f"--host={_worker(i)}", "--nthreads=1", "--memory-limit=0"]
            worker += ["--no-dashboard", "--no-nanny"]
            stack.enter_context(_machine(i, [sys.executable, *worker], case.mbit, folder))
        time.sleep(10 * (case.machines > 0))  # in which they start
        counts = _counts_of_rounds(command, run, folder)
        seconds = _column(pathlib.Path(run, "timings.csv"), "round_seconds")
    found = {"first_round": round(seconds[0], 3), "round": spread(seconds[1:])}
    if case.machines:
        changes = [
            [after - before for before, after in zip(*pair, strict=True)]
            for pair in itertools.pairwise(counts)
        ]
        names = "bytes_to_worker", "bytes_from_worker"
        for name, values in zip(names, zip(*changes, strict=True), strict=True):
            found[name] = round(statistics.median(values) / case.machines)
    return found


def _counts_of_rounds(command, run, folder) -> list[tuple[int, int]]:
    """Trains, and returns the bytes to and from all workers after each round."""
    counts = []
    with _process(command, folder) as training:
        while training.poll() is None:
            with contextlib.suppress(OSError):
                if len(_column(pathlib.Path(run, "timings.csv"), "round")) > len(counts):
                    counts.append(_bytes())
            time.sleep(0.01)
    if training.returncode:
        raise RuntimeError(pathlib.Path(folder, "log").read_text())
    return counts


def _bytes() -> tuple[int, int]:
    """Returns the bytes to and from all workers so far."""
    lines = pathlib.Path("/proc/net/dev").read_text().splitlines()
    cables = [line.split(":")[1].split() for line in lines if "cable" in line]
    return sum(int(cable[8]) for cable in cables), sum(int(cable[0]) for cable in cables)


def _column(path, name) -> list[float]:
    header, *lines = path.read_text().splitlines()
    place = header.split(",").index(name)
    return [float(line.split(",")[place]) for line in lines if line.count(",") == header.count(",")]


def _program(index):
    return f"10.9.{index}.1"


def _worker(index):
    return f"10.9.{index}.2"


@contextlib.contextmanager
def _machine(index, command, mbit, folder) -> Iterator[None]:
    """Runs a worker in a network of its own, on one core."""
    core = sorted(os.sched_getaffinity(0))[index % len(os.sched_getaffinity(0))]
    wait = "until ip -4 addr show dev cable 2>/dev/null | grep -q inet; do sleep 0.1; done"
    script = f'{wait}; exec taskset -c {core} "$@"'
    with _process(["unshare", "--net", "sh", "-c", script, "sh", *command], folder) as process:
        time.sleep(0.3)  # in which its network is made
        pid, cable = str(process.pid), f"cable{index}"
        inside = ["nsenter", "-t", pid, "-n"]
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "cable", "netns", pid)
        for prefix, device in ([], cable), (inside, "cable"):
            if mbit:
                limit = ["tbf", "rate", f"{mbit}mbit", "burst", _BURST, "latency", "100ms"]
                _run(*prefix, "tc", "qdisc", "add", "dev", device, "root", *limit)
            _run(*prefix, "ip", "link", "set", device, "up")
        _run(*inside, "ip", "link", "set", "lo", "up")
        _run("ip", "addr", "add", f"{_program(index)}/24", "dev", cable)
        _run(*inside, "ip", "addr", "add", f"{_worker(index)}/24", "dev", "cable")
        yield
    with contextlib.suppress(subprocess.CalledProcessError):  # gone with the worker's network
        _run("ip", "link", "delete", f"cable{index}")


@contextlib.contextmanager
def _process(command, folder) -> Iterator[subprocess.Popen]:
    """Runs a command of the checkout; its output goes to a file."""
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with open(os.path.join(folder, "log"), "ab") as log:
        process = subprocess.Popen(
            command, cwd=_ROOT, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _run(*command):
    subprocess.run(command, check=True, capture_output=True, text=True)


if __name__ == "__main__":
    app.run(main)
