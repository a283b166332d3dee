"""The version, which checkpoints hold."""

__version__ = "0.1.0"
