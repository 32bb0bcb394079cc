"""Writes the folders of a coordinator and of devices, for a method on scikit-learn's digits.

python export.py --algorithm=ditto --output=deployed
"""

import argparse
import pathlib
import shutil

from tff_pfl import prepare_process

prepare_process()

from exported import Message  # noqa: E402
from federation import experiment_of  # noqa: E402

from tff_pfl import deployment  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--algorithm", default="ditto", help="The name of the method.")
    parser.add_argument("--output", required=True, type=pathlib.Path, help="A new folder.")
    parser.add_argument("--devices", type=int, default=10, help="Number of devices.")
    parser.add_argument("--cohort", type=int, default=6, help="Number of devices in a round.")
    args = parser.parse_args()
    experiment = experiment_of(args.algorithm, args.devices, args.cohort)
    process, dataset = experiment.process, experiment.dataset
    deployment.export_server(process, args.output / "server" / "process")
    deployment.export_client(process, args.output / "client")
    for client_id in range(args.devices):
        folder = args.output / f"device_{client_id}"
        shutil.copytree(args.output / "client", folder / "client")
        data = deployment.named_tensors("data", dataset.examples(client_id, "train"))
        Message({"client_id": client_id}, data).write(folder / "examples.npz")


if __name__ == "__main__":
    main()
