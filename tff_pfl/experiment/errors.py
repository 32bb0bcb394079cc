"""What of a run goes wrong, and can be mended by its user."""

import sys

from tff_pfl import clients, data, runtime
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.run_directory import OutputDirectoryError


class NobodyReportedError(RuntimeError):
    """A round without clients, in a runtime that has no results of nobody."""


class ServerMemoryError(MemoryError):
    """The server's state is larger than this machine can hold."""


def user_errors() -> tuple[type[Exception], ...]:
    """What a user can mend, for `except`: shown as one message, without a traceback.

    Those of TensorFlow are among them if it is imported: nobody else raises them.
    """
    return (
        clients.CorruptStateError,
        clients.ForeignStateError,
        clients.StateStoreError,
        ConfigError,
        NobodyReportedError,
        runtime.DeviceError,
        OSError,  # missing files, full disks; with their paths
        OutputDirectoryError,
        data.PartitionFileError,
        ServerMemoryError,
        runtime.WorkerDiedError,
        *_errors_of_tensorflow(),
    )


def _errors_of_tensorflow() -> tuple[type[Exception], ...]:
    """Of files that it writes, and of memory."""
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return ()
    return (
        tf.errors.FailedPreconditionError,
        tf.errors.NotFoundError,
        tf.errors.PermissionDeniedError,
        tf.errors.ResourceExhaustedError,
    )
