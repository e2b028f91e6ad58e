"""What the extension gives us. The only file that imports headrace_native; it may be absent."""

from headrace_native import Model, StepResult, Weights, level, levels

from headrace.errors import ConfigurationError

__all__ = ["BLOCK_SIZE", "Model", "StepResult", "Weights", "instruction_set", "levels"]

BLOCK_SIZE = 32  # tokens in one KV block, fixed in the kernels


def instruction_set() -> str:
    """The level that runs: the best of this machine, or the one that HEADRACE_ISA names."""
    try:
        name: str = level()
    except ValueError as error:  # it names the variable
        raise ConfigurationError(str(error), param="HEADRACE_ISA") from None
    return name
