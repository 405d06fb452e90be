"""The bench: drives omni-modality model servers with a prefix cache off and on, and reports what it is worth."""

from harness._version import __version__

__all__ = ["__version__"]
