"""Trains on two workers, one of which is killed, and then on one device; saves both runs.

    unshare -rnpf --kill-child python -m tests.runtime.graph.scripts.lost_worker FOLDER

FOLDER receives the runs `lost` and `one`, and the standard error of the first in `errors.txt`.
"""

import os
import pathlib
import subprocess
import sys
import time

from tests.runtime.graph.scripts.cluster import ROOT, bring_loopback_up, start_workers

_TRAIN = [
    *(sys.executable, str(ROOT / "programs" / "train.py"), "--config=configs/digits.py:ditto"),
    *("--config.rounds=5", "--config.data.num_clients=5", "--config.clients_per_round=4"),
]


def _rounds(run):
    metrics = run / "metrics.csv"
    return len(metrics.read_text().splitlines()) - 1 if metrics.exists() else 0


def main(folder):
    bring_loopback_up()
    addresses = ["127.0.0.1:2301", "127.0.0.1:2302"]
    workers = start_workers(addresses)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    lost, one = folder / "lost", folder / "one"
    with open(folder / "errors.txt", "w") as errors:
        options = [f"--workers={','.join(addresses)}", "--restarts=1", f"--output_dir={lost}"]
        training = subprocess.Popen([*_TRAIN, *options], env=environment, stderr=errors)
        while _rounds(lost) < 2 and training.poll() is None:
            time.sleep(0.05)
        workers[1].kill()
        assert training.wait() == 0
    options = ["--devices=CPU:0", f"--output_dir={one}"]
    subprocess.run([*_TRAIN, *options], env=environment, check=True)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
