"""Checks whether a run's telemetry is complete and plausible. Needs only the standard library."""


class InvalidTelemetryError(Exception):
    """Telemetry is not valid. The message is one sentence that says why."""
