"""Measures a run's copies of its server's state.

    python -m tests.experiment.server_memory METHOD N

Trains a run of three rounds with a hundred clients, and then one with N clients. Prints the growth
of the peak of the resident memory, including mapped files, as a multiple of the state.
"""

import pathlib
import re
import sys
import tempfile

from tff_pfl.runtime.startup import prepare_process

prepare_process()

from tff_pfl import runtime, testing  # noqa: E402
from tff_pfl.algorithms import make  # noqa: E402
from tff_pfl.data import FederatedDataset  # noqa: E402
from tff_pfl.evaluation import Evaluation  # noqa: E402
from tff_pfl.experiment import Experiment, train  # noqa: E402
from tff_pfl.tracing.structures import tensor_sizes  # noqa: E402

_COHORT = 3


def peak_after_run(name: str, num_clients: int) -> tuple[int, int]:
    """Trains a run; returns the peak of the resident memory and the size of the state, in bytes."""
    options = {"num_clients": num_clients, "clients_per_round": _COHORT}
    algorithm = make(name, testing.tiny_model(), testing.tiny_local(), **options)
    data = testing.tiny_examples(4, seed=1)
    x, y = data.x[:4], data.y[:4]
    dataset = FederatedDataset.from_client_arrays([(x, y, x[:1], y[:1])] * num_clients, max(y) + 1)
    rounds = {"rounds": 3, "clients_per_round": _COHORT, "evaluation": Evaluation(every=0)}
    experiment = Experiment(algorithm, dataset, **rounds)
    with tempfile.TemporaryDirectory() as path:
        train(experiment, path)
    # `resource.getrusage` would start from the peak of the parent process.
    status = pathlib.Path("/proc/self/status").read_text()
    (peak,) = re.findall(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    return 1024 * int(peak), sum(
        tensor_sizes(experiment.process.initialize.type_signature.result.member).values()
    )


if __name__ == "__main__":
    runtime.set_graph_context()
    before, _ = peak_after_run(sys.argv[1], 100)
    peak, size = peak_after_run(sys.argv[1], int(sys.argv[2]))
    print(f"{(peak - before) / size:.1f}")
