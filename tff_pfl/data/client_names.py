"""The names of clients. Inside, a client is known by its id, its position among the names."""

import operator
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from tff_pfl.arguments.names import UnknownNameError, unknown_name

_INT64 = range(-(2**63), 2**63)


def checked_names(names: Sequence[int | str], num_clients: int) -> np.ndarray:
    """Returns the names as an array `[N]` of int64 or of text.

    Raises:
        ValueError: There is not one name for each client, a name occurs twice, or names are neither
            all text nor all whole numbers of 64 bits.
    """
    given = np.asarray(names).tolist() if isinstance(names, np.ndarray) else list(names)
    are_text = all(isinstance(name, str) for name in given)
    if not are_text:
        wrong = [name for name in given if isinstance(name, str) or not _is_whole(name)]
        if wrong:
            raise ValueError(
                "Names of clients must be all text, or all whole numbers of 64 bits, got "
                f"{wrong[0]!r}."
            )
    array = np.array(given, np.str_ if are_text else np.int64)
    if array.shape != (num_clients,):
        raise ValueError(f"There are {len(given)} names for {num_clients} clients.")
    unique, counts = np.unique(array, return_counts=True)
    if len(unique) < num_clients:
        raise ValueError(f"Two clients have the name {unique[counts > 1][0].item()!r}.")
    return array


def _is_whole(name) -> bool:
    is_whole = isinstance(name, int | np.integer) and not isinstance(name, bool | np.bool_)
    return is_whole and int(name) in _INT64


def ids_by_text(names: Iterable[int | str]) -> dict[str, int]:
    """Returns the id of each client by its name as text."""
    return {str(name): client_id for client_id, name in enumerate(names)}


def id_of(client: int | str, by_text: Mapping[str, int], kind: str | None) -> int:
    """Returns the id of a client.

    Args:
        client: The client's name, or its id if clients have no names. Text may stand for a number.
        by_text: The result of `ids_by_text`.
        kind: The kind of the array of names, "U" for text; `None` if clients have no names.

    Raises:
        UnknownNameError: The client does not exist, or is a number although names are text.
        TypeError: The client is neither text nor a whole number.
    """
    client = client if isinstance(client, str) else operator.index(client)
    found = by_text.get(str(client))
    if kind == "U" and not isinstance(client, str):
        name = next(iter(by_text)) if found is None else str(client)
        raise UnknownNameError(
            f"Client {client} is a number, but the clients' names are text, such as {name!r}; "
            "dataset.names[i] is the name of the client with id i."
        )
    if found is None:
        ids = f"Client {client!r} does not exist: ids are 0..{len(by_text) - 1}."
        raise UnknownNameError(ids if kind is None else unknown_name("client", client, by_text))
    return found
