"""Headrace's CPU kernels: packed weights and a decoder's step over a paged KV cache."""

from headrace_native._native import Model, StepResult, Weights, level, levels

__all__ = ["Model", "StepResult", "Weights", "level", "levels"]
