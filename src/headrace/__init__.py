"""Headrace serves models: one server for language models and tensor models."""

__version__ = "0.1.0"
