"""Compares methods by workers that Slurm starts, each in a job of its own.

pip install dask-jobqueue
python examples/clusters/slurm_compare.py
"""

from dask_jobqueue import SLURMCluster
from distributed import Client

import tff_pfl


def main():
    digits = tff_pfl.load("digits")
    dataset = tff_pfl.federate(digits, num_clients=20, partitioner="dirichlet", seed=0)
    model = tff_pfl.models.build("mlp", dataset.image_shape, dataset.num_classes, hidden=(64,))
    local = tff_pfl.LocalTraining(tff_pfl.OPTIMIZERS["sgd"](0.1), epochs=5, batch_size=10)
    methods = {name: tff_pfl.make(name, model, local) for name in ("local", "fedper", "ditto")}

    cluster = SLURMCluster(
        cores=1,  # one training per worker
        processes=1,
        job_cpu=4,  # which TensorFlow uses
        memory="8GB",
        walltime="04:00:00",
        job_extra_directives=["--gres=gpu:1"],  # a GPU for each worker; leave it out for none
    )
    cluster.adapt(maximum=10)  # as many jobs as there are runs left, at most ten
    with Client(cluster) as client:
        print(tff_pfl.compare(dataset, methods, rounds=50, seeds=range(5), client=client))


if __name__ == "__main__":
    main()
