"""The federation that an algorithm is made for."""

from typing import NamedTuple

import tensorflow as tf


class Federation(NamedTuple):
    """The sizes of the federation that an algorithm was made for; `None`: any size.

    Attributes:
        num_clients: The number of clients of the federation; ids are below it.
        clients_per_round: The expected number of clients in a round.
        largest_cohort: The largest number of clients in a round.
        smallest_cohort: The smallest number of clients whose uploads the server can use.
    """

    num_clients: int | None = None
    clients_per_round: int | None = None
    largest_cohort: int | None = None
    smallest_cohort: int | None = None

    def nearest_id(self, client_id: tf.Tensor) -> tf.Tensor:
        """Returns the id, or if the federation has no such client, the nearest id that it has."""
        if self.num_clients is None:
            return client_id
        return tf.clip_by_value(client_id, 0, self.num_clients - 1)

    def check(self, num_clients: int, clients_per_round: int) -> None:
        """Checks that the algorithm fits a federation of these sizes.

        Raises:
            ValueError: It was made for other sizes.
        """
        for name, expected, found in (
            ("num_clients", self.num_clients, num_clients),
            ("clients_per_round", self.clients_per_round, clients_per_round),
        ):
            if expected not in (None, found):
                raise ValueError(
                    f"The algorithm was made for {name}={expected}, but here it is {found}. "
                    f"Make it with {name}={found}."
                )
        if self.largest_cohort is not None and self.largest_cohort < clients_per_round:
            raise ValueError(
                f"The algorithm was made for largest_cohort={self.largest_cohort}, but a round has "
                f"{clients_per_round} clients. Make it with that number or more."
            )


ANY_FEDERATION = Federation()
"""The federation of an algorithm that uses no such sizes."""
