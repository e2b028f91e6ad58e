"""Every error a caller can meet, each with its own answer. Knows nothing of HTTP but numbers.

HeadraceError                     500  internal_error
|-- InvalidRequestError           400  invalid_value
|   |-- ContextLengthError        400  context_length_exceeded
|   `-- UnsupportedParameterError 400  unsupported_parameter
|-- ModelNotFoundError            404  model_not_found
|-- RolloutNotFoundError          404  rollout_not_found
|-- ExperimentNotFoundError       404  experiment_not_found
|-- RequestNotFoundError          404  request_not_found
|-- ConflictError                 409  conflict
|   |-- InsufficientMemoryError   409  insufficient_memory
|   `-- FeedbackGivenError        409  feedback_given
|-- BodyTooLargeError             413  body_too_large
|-- BodyTimeoutError              408  body_timeout
|-- UnavailableError              503  unavailable          carries retry_after
|   |-- QueueFullError            503  queue_full
|   |-- NotReadyError             503  model_not_ready
|   |-- NoEndpointError           503  no_endpoint
|   `-- DrainingError             503  draining
|-- DeadlineError                 504  deadline_exceeded
|-- WorkerDiedError               500  worker_died
|-- ConfigurationError            500  invalid_configuration   stops the start, exit code 2
`-- ModelFileError                500  invalid_model_file      stops a load, exit code 2
"""

from typing import ClassVar


class HeadraceError(Exception):
    """A fault of ours, unless a subclass says otherwise."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    type: ClassVar[str] = "server_error"

    def __init__(
        self, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        """Take the sentence for the caller, the field at fault, and the seconds until a retry."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after = retry_after


class InvalidRequestError(HeadraceError):
    """A value, or a combination of values, that the caller must change."""

    status = 400
    code = "invalid_value"
    type = "invalid_request_error"


class ContextLengthError(InvalidRequestError):
    """The prompt is longer than the model's context."""

    code = "context_length_exceeded"


class UnsupportedParameterError(InvalidRequestError):
    """A field that the API we speak knows and this server does not serve."""

    code = "unsupported_parameter"


class ModelNotFoundError(HeadraceError):
    """No model of that name is served."""

    status = 404
    code = "model_not_found"
    type = "invalid_request_error"


class RolloutNotFoundError(HeadraceError):
    """No rollout has that id."""

    status = 404
    code = "rollout_not_found"
    type = "invalid_request_error"


class ExperimentNotFoundError(HeadraceError):
    """No experiment has that id."""

    status = 404
    code = "experiment_not_found"
    type = "invalid_request_error"


class RequestNotFoundError(HeadraceError):
    """No request of that id belongs to an experiment that runs, or it was too long ago."""

    status = 404
    code = "request_not_found"
    type = "invalid_request_error"


class ConflictError(HeadraceError):
    """What is asked for cannot be done to a model in the state that it is in."""

    status = 409
    code = "conflict"
    type = "conflict_error"


class InsufficientMemoryError(ConflictError):
    """A model needs more memory than there is; names both numbers."""

    code = "insufficient_memory"


class FeedbackGivenError(ConflictError):
    """Feedback of a request counts once."""

    code = "feedback_given"


class BodyTooLargeError(HeadraceError):
    """The request body is over `max_body_bytes`."""

    status = 413
    code = "body_too_large"
    type = "invalid_request_error"


class BodyTimeoutError(HeadraceError):
    """The request body took too long to arrive."""

    status = 408
    code = "body_timeout"
    type = "invalid_request_error"


class UnavailableError(HeadraceError):
    """Not now; `retry_after` says when it is worth trying again."""

    status = 503
    code = "unavailable"
    type = "unavailable_error"


class QueueFullError(UnavailableError):
    """As many requests or tokens wait as may."""

    code = "queue_full"


class NotReadyError(UnavailableError):
    """The model is loading, or its worker is being restarted."""

    code = "model_not_ready"


class NoEndpointError(UnavailableError):
    """None of a model's endpoints takes requests."""

    code = "no_endpoint"


class DrainingError(UnavailableError):
    """The server is shutting down and takes no new work."""

    code = "draining"


class DeadlineError(HeadraceError):
    """The request's deadline passed, before or during generation."""

    status = 504
    code = "deadline_exceeded"
    type = "timeout_error"


class WorkerDiedError(HeadraceError):
    """The process that ran the model ended while it was answering."""

    code = "worker_died"


class ConfigurationError(HeadraceError):
    """A setting is unknown, mistyped or out of range; names the key and the file."""

    code = "invalid_configuration"


class ModelFileError(HeadraceError):
    """A model's file is missing, corrupt, truncated or not supported; names file and tensor."""

    code = "invalid_model_file"


def from_code(
    code: str, message: str, *, param: str | None = None, retry_after: float | None = None
) -> HeadraceError:
    """Rebuild an error that crossed a process boundary as its code and sentence."""
    kind = _BY_CODE.get(code, HeadraceError)
    return kind(message, param=param, retry_after=retry_after)


def again(error: HeadraceError) -> HeadraceError:
    """The same error for another caller; an exception object belongs to one."""
    return from_code(error.code, error.message, param=error.param, retry_after=error.retry_after)


def _tree(kind: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [kind, *(sub for child in kind.__subclasses__() for sub in _tree(child))]


_BY_CODE = {kind.code: kind for kind in _tree(HeadraceError)}
