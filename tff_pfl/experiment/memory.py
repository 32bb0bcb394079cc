"""Checks that the server's state fits into the memory of this machine, before a run finds out.

The servers of some methods hold something for each client, or for each pair of them: the runtime's
guide has how much, as a function of their number.
"""

import os

from tff_pfl.structures import tensor_sizes
from tff_pfl.templates import PersonalizedProcess

COPIES = 5
"""How many times a run holds a state, at least: before and after a round, in it, and written.

With 12,000 clients, where a matrix of pairs is nearly all of the state, the resident memory of
FedAMP's run grew by 8 times the state, mapped files included.
"""

# The limit of a container, by the version of cgroups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def check_server_memory(process: PersonalizedProcess, memory: int | None = None) -> None:
    """Checks that `COPIES` of a server's state fit into memory.

    Args:
        process: The process, whose initial state tells the size; axes of unknown length, which are
            those of the cohort, do not count.
        memory: Bytes; by default what the machine has, or what it grants to its container.

    Raises:
        MemoryError: With the three largest parts of the state.
    """
    sizes = tensor_sizes(process.initialize.type_signature.result.member)
    total = sum(sizes.values())
    memory = memory_of_machine() if memory is None else memory
    if COPIES * total <= memory:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:3]
    parts = ", ".join(f"{path} {_gib(sizes[path])}" for path in largest)
    raise MemoryError(
        f"The server's state takes {_gib(total)} ({parts}), and a run holds it {COPIES} times or "
        f"more; this machine has {_gib(memory)} of memory. Have fewer clients, a smaller model, or "
        "a method whose server holds nothing for each client."
    )


def memory_of_machine() -> int:
    """Returns the bytes that a process may have: all, or as many as its container is granted."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in _LIMITS:
        try:
            with open(path) as file:
                sizes.append(int(file.read()))
        except (OSError, ValueError):  # another version, or "max"
            continue
    return min(sizes)


def _gib(size) -> str:
    return f"{size / 2**30:,.2f} GiB"
