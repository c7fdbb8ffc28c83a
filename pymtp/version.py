"""Which pymtp this is, and what its native library was built from."""

from importlib.metadata import version

__version__ = version("pymtp-gguf")


def version_text() -> str:
    """One line: the version, the pinned llama.cpp source and the hash of the patch series."""
    from pymtp.binding.library import PIN, SERIES

    return f"pymtp {__version__} ({PIN}, series {SERIES})"
