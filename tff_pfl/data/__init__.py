"""Data sets, their partitions among clients, and the examples of a client."""

from typing import TYPE_CHECKING

from tff_pfl.lazy import offer

if TYPE_CHECKING:
    from tff_pfl.data.checks import ExamplesError as ExamplesError
    from tff_pfl.data.client_rows import ClientRows as ClientRows
    from tff_pfl.data.federated_dataset import FederatedDataset as FederatedDataset
    from tff_pfl.data.labelled_images import LabelledImages as LabelledImages
    from tff_pfl.data.partition import PARTITIONERS as PARTITIONERS
    from tff_pfl.data.partition import PartitionError as PartitionError
    from tff_pfl.data.partition_file import SPLITS as SPLITS
    from tff_pfl.data.partition_file import Partition as Partition
    from tff_pfl.data.partition_file import PartitionFileError as PartitionFileError
    from tff_pfl.data.pictures import plot_partition as plot_partition
    from tff_pfl.data.protocols import federate as federate
else:
    __getattr__, __dir__, __all__ = offer(__name__)
