"""Errors a user can fix, shown without a traceback."""

import sys

from tff_pfl import clients, data, runtime
from tff_pfl.experiment.config.errors import ConfigError
from tff_pfl.experiment.run_directory import OutputDirectoryError


class NobodyReportedError(RuntimeError):
    """A round has no clients, and the runtime cannot compute it."""


def user_errors() -> tuple[type[Exception], ...]:
    """Returns the errors a user can fix, for `except`; TensorFlow's if it is imported."""
    tf = sys.modules.get("tensorflow")
    return (
        clients.CorruptStateError,
        clients.ForeignStateError,
        clients.StateStoreError,
        ConfigError,
        NobodyReportedError,
        MemoryError,
        runtime.DeviceError,
        OSError,  # missing files, full disks; with their paths
        OutputDirectoryError,
        data.PartitionFileError,
        runtime.WorkerDiedError,
        *(
            ()
            if tf is None
            else (
                tf.errors.FailedPreconditionError,
                tf.errors.NotFoundError,
                tf.errors.PermissionDeniedError,
                tf.errors.ResourceExhaustedError,
            )
        ),
    )
