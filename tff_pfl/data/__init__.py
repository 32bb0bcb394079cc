"""Data sets, their partitions among clients, and the examples of a client."""

from tff_pfl.lazy import offer

__getattr__, __dir__, __all__ = offer(
    __name__,
    {
        "checks": ("ExamplesError",),
        "client_rows": ("ClientRows",),
        "federated_dataset": ("FederatedDataset",),
        "partition": ("PARTITIONERS", "PartitionError"),
        "partition_file": ("SPLITS", "Partition", "PartitionFileError"),
        "pictures": ("plot_partition",),
        "protocols": ("federate",),
        "labelled_images": ("LabelledImages",),
    },
)
