"""The error of a cluster."""


class ClusterError(RuntimeError):
    """An error about a cluster: its scheduler does not answer, or a worker does not fit."""
