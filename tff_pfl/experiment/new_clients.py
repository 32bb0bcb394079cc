"""Holds out clients that do not train, but are evaluated after the last round."""

import dataclasses

from tff_pfl.arguments.ranges import takes, whole
from tff_pfl.data import FederatedDataset
from tff_pfl.local import LocalTraining


@takes(number=whole(1), fine_tune_epochs=whole(0))
@dataclasses.dataclass(frozen=True)
class NewClients:
    """The last clients of a federation, which join after training; see `NewClientsEvaluation`.

    Attributes:
        number: The number of clients that do not train.
        fine_tune_epochs: The passes over their training examples in which they fine-tune.
        best_epoch: Whether the best of these epochs is also reported.
        evaluated: Whether they are evaluated, not only held out.
        local: The local training by which they fine-tune. Default: that of the algorithm.
    """

    number: int
    fine_tune_epochs: int = 20
    best_epoch: bool = False
    evaluated: bool = True
    local: LocalTraining | None = None

    def split(self, dataset: FederatedDataset) -> tuple[FederatedDataset, FederatedDataset]:
        """Returns the data of the clients that train and of the new clients.

        Raises:
            ValueError: No client would train.
        """
        first, ids = dataset.num_clients - self.number, range(dataset.num_clients)
        if first < 1:
            raise ValueError(
                f"number={self.number}, but the federation has only {dataset.num_clients} clients. "
                f"Choose 0 to {dataset.num_clients - 1}, so that at least one client trains."
            )
        return tuple(dataset.of(part, num_trained=first) for part in (ids[:first], ids[first:]))
