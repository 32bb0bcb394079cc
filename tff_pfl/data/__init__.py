"""Data sets, how they are spread over clients, and a client's examples."""

from tff_pfl.data.federated_dataset import (
    ExamplesError,
    FederatedDataset,
    check_examples,
    federate,
)
from tff_pfl.data.partition import PARTITIONERS, PartitionError
from tff_pfl.data.partition_file import SPLITS, Partition, PartitionFileError
from tff_pfl.data.pictures import plot_partition
from tff_pfl.data.sources import (
    DATASETS,
    NORMALIZATIONS,
    DataNotFoundError,
    LabelledImages,
    load,
    normalization,
)

__all__ = [
    "DATASETS",
    "DataNotFoundError",
    "ExamplesError",
    "FederatedDataset",
    "LabelledImages",
    "NORMALIZATIONS",
    "PARTITIONERS",
    "Partition",
    "PartitionError",
    "PartitionFileError",
    "SPLITS",
    "check_examples",
    "federate",
    "load",
    "normalization",
    "plot_partition",
]
