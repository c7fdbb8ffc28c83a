"""Several models on several machines, by Ray: `serve_application` for Ray Serve, `Completions` for Ray Data.

Needs the extra `ray`. Knows models and the server's application; nothing of either knows Ray.
"""

from .data import Completions
from .serving import serve_application

__all__ = ["Completions", "serve_application"]
