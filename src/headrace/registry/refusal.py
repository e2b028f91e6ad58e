"""Why a version that does not answer takes no request, and when to ask again. Plain values only."""

from headrace.errors import HeadraceError, ModelNotFoundError, NotReadyError
from headrace.registry.lifecycle import State

UNLOADED_RETRY_AFTER = 5.0  # seconds; of a version whose workers are on their way out or back
FAILED_RETRY_AFTER = 60.0  # seconds
UNPROVEN_RETRY_AFTER = 1.0  # seconds


def refusal(
    model_id: str,
    *,
    state: State,
    is_open: bool,
    is_up: bool,
    of_endpoints: HeadraceError | None,
) -> HeadraceError:
    """Of a version that is not open, or whose endpoints have not all proved themselves."""
    if state == "deprecated" and not is_up:
        return ModelNotFoundError(
            f"{model_id} was replaced and is not in memory; a swap or a rollback loads it",
            param="model",
        )
    if state == "failed":
        return NotReadyError(f"{model_id} has failed", retry_after=FAILED_RETRY_AFTER)
    if not is_open:
        return NotReadyError(f"{model_id} is being replaced", retry_after=UNLOADED_RETRY_AFTER)
    if not is_up:
        return NotReadyError(f"{model_id} is not loaded", retry_after=UNLOADED_RETRY_AFTER)
    if of_endpoints is not None:
        return of_endpoints
    return NotReadyError(f"{model_id} is being checked", retry_after=UNPROVEN_RETRY_AFTER)
