"""Checks before a run that the server's state fits into this machine's memory.

The servers of some methods hold values for each client or for each pair of clients. The guide to
large populations has their sizes as functions of the number of clients.
"""

import os

from tff_pfl.templates import PersonalizedProcess
from tff_pfl.tracing.structures import tensor_sizes

COPIES = 5
"""The least number of copies of a state in a run: before, during and after a round, and written.

The resident memory of a FedAMP run with 12,000 clients, whose state is almost only a matrix of
pairs, grew by 8 times the state, including mapped files.
"""

# The limit of a container, by the version of cgroups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_server_memory(process: PersonalizedProcess, memory: int | None = None) -> None:
    """Checks that `COPIES` copies of a server's state fit into memory.

    Args:
        process: The process. The size is computed from the type of its initial state; axes of
            unknown length, which belong to the cohort, do not count.
        memory: The available bytes; by default the memory of the machine, or the limit of the
            container.

    Raises:
        MemoryError: The copies do not fit. The message has the three largest parts of the state.
    """
    sizes = tensor_sizes(process.initialize.type_signature.result.member)
    total = sum(sizes.values())
    memory = memory_of_machine() if memory is None else memory
    if COPIES * total <= memory:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    parts = ", ".join(f"{path} {_gib(sizes[path])}" for path in largest)
    raise MemoryError(
        f"The server's state takes {_gib(total)} ({parts}), and a run needs {COPIES} copies or "
        f"more, but this machine has {_gib(memory)} of memory. Choose fewer clients, a smaller "
        "model, or a method whose server state does not grow with the number of clients."
    )


def memory_of_machine() -> int:
    """Returns the bytes of the machine's memory, or its container's limit if that is less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        try:
            with open(path) as file:
                sizes.append(int(file.read()))
        except (OSError, ValueError):  # another version of cgroups, or "max" for no limit
            continue
    return min(sizes)


def _gib(size) -> str:
    return f"{size / 2**30:,.2f} GiB"
