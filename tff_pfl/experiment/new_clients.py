"""Holds out clients that do not train, but are evaluated after the last round."""

from typing import TYPE_CHECKING

from tff_pfl.arguments.ranges import whole
from tff_pfl.arguments.settings import RESULTS, setting, settings

if TYPE_CHECKING:
    from tff_pfl.data import FederatedDataset
    from tff_pfl.local import LocalTraining


@settings
class NewClients:
    """The last clients of a federation, which join after training; see `NewClientsEvaluation`."""

    number: int = setting("The number of the last clients, which do not train.", whole(1))
    fine_tune_epochs: int = setting(
        "The passes over their training examples in which they fine-tune.",
        whole(0),
        default=20,
        changes=RESULTS,
        idle={"evaluated": False},
    )
    evaluated: bool = setting(
        "Whether they are evaluated at the end, not only held out.", default=True
    )
    local: "LocalTraining | None" = None  # by which they fine-tune; `None`: that of the algorithm

    def split(self, dataset: "FederatedDataset") -> "tuple[FederatedDataset, FederatedDataset]":
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
        trained, others = ids[:first], ids[first:]
        return dataset.of(trained, num_trained=first), dataset.of(others, num_trained=first)
