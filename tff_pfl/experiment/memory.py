"""Whether the state of a server fits into the memory of this machine, before a run finds out.

The server of some methods holds something for each client, or for each pair of them: the runtime's
guide has how much, as a function of their number.
"""

import os

from tff_pfl.experiment.errors import ServerMemoryError
from tff_pfl.structures import tensor_sizes
from tff_pfl.templates import PersonalizedProcess

COPIES = 5
"""How many times a run holds a state, at the least: before and after a round, in it, and written.

With 12,000 clients, where a matrix of pairs is nearly all of the state, the resident memory of
FedAMP's run grew by 8 times the state, mapped files included.
"""

# Where the limit of a container stands, by the version of cgroups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_NAMED = 3  # parts of a state in a message


def check_server_memory(process: PersonalizedProcess, memory: int | None = None) -> None:
    """Refuses a server's state of which `COPIES` are more than there is memory.

    Args:
        process: Its initial state tells the size: numbers whose shape is not known are of the
            cohort, and count as none.
        memory: Bytes; by default what the machine has, or what it grants to its container.

    Raises:
        ServerMemoryError: With how large what is.
    """
    sizes = state_sizes(process)
    total = sum(sizes.values())
    memory = memory_of_machine() if memory is None else memory
    if COPIES * total <= memory:
        return
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:_NAMED]
    parts = ", ".join(f"{path} {_gib(sizes[path])}" for path in largest)
    raise ServerMemoryError(
        f"The server's state takes {_gib(total)} ({parts}), and a run holds it {COPIES} times or "
        f"more; this machine has {_gib(memory)} of memory. Have fewer clients, a smaller model, or "
        "a method whose server holds nothing for each client."
    )


def state_sizes(process: PersonalizedProcess) -> dict[str, int]:
    """Bytes of each tensor of the server's state, by its path; see `check_server_memory`."""
    return tensor_sizes(process.initialize.type_signature.result.member)


def memory_of_machine() -> int:
    """Bytes that a process may have: all, or as many as its container is granted."""
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
