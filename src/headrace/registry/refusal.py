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
    has_workers: bool,
    of_workers: HeadraceError | None,
) -> HeadraceError:
    """Of a version that is not open, or whose workers have not all proved themselves."""
    if state == "deprecated" and not has_workers:
        return ModelNotFoundError(
            f"{model_id} was replaced and is not in memory; a swap or a rollback loads it",
            param="model",
        )
    if state == "failed":
        return NotReadyError(f"{model_id} has failed", retry_after=FAILED_RETRY_AFTER)
    if not is_open:
        return NotReadyError(f"{model_id} is being replaced", retry_after=UNLOADED_RETRY_AFTER)
    if not has_workers:
        return NotReadyError(f"{model_id} is not loaded", retry_after=UNLOADED_RETRY_AFTER)
    if of_workers is not None:
        return of_workers
    return NotReadyError(f"{model_id} is being checked", retry_after=UNPROVEN_RETRY_AFTER)
