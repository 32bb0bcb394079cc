"""The federation that an algorithm is made for."""

from typing import NamedTuple


class Federation(NamedTuple):
    """The federation that an algorithm was made for; `None`: it does not matter.

    Attributes:
        num_clients: Clients of the federation, whose ids are less.
        clients_per_round: How many are expected in a round.
        largest_cohort: The most clients of a round.
    """

    num_clients: int | None = None
    clients_per_round: int | None = None
    largest_cohort: int | None = None

    def check(self, num_clients: int, clients_per_round: int) -> None:
        """Checks that it is the one with so many clients, of which so many are in a round.

        Raises:
            ValueError: If it is another one.
        """
        for name, told, found in (
            ("num_clients", self.num_clients, num_clients),
            ("clients_per_round", self.clients_per_round, clients_per_round),
        ):
            if told not in (None, found):
                raise ValueError(
                    f"The algorithm was made for {name}={told}, and would compute with it, but "
                    f"here it is {found}. Make it with {name}={found}."
                )
        if self.largest_cohort is not None and self.largest_cohort < clients_per_round:
            raise ValueError(
                f"The algorithm was made for largest_cohort={self.largest_cohort}, but there are "
                f"{clients_per_round} clients a round. Make it with that or more."
            )


ANY_FEDERATION = Federation()
"""The federation of an algorithm that computes with none of these numbers."""
