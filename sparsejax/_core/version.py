"""The version of the library; checkpoints store it."""

__version__ = "0.1.0"
