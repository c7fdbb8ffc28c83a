"""What the endpoints share: the engine, the settings, and how a request's fields become answers.

Knows no API's words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from pymtp.chat.template import ChatTemplate
from pymtp.loading.vocabulary import Vocabulary
from pymtp.model import Model

from .access import asker
from .answer import Answer
from .engine import Engine
from .fields import GenerationFields
from .parameters import options_of, params_of
from .settings import ServerSettings

if TYPE_CHECKING:
    from .chat import Rendered


class ServerState:
    """Of a server: one for all of its requests."""

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self.engine = engine
        self.settings = settings
        self._template: tuple[Model, ChatTemplate] | None = None

    @property
    def template(self) -> ChatTemplate:
        """The chat template. Raises what ChatTemplate raises."""
        model = self.model
        if self._template is None or self._template[0] is not model:
            self._template = model, ChatTemplate(model.vocabulary, self.settings.chat_template)
        return self._template[1]

    @property
    def model(self) -> Model:
        """The model. Raises ApiError while there is none."""
        return self.engine.model

    @property
    def vocabulary(self) -> Vocabulary:
        """Of the model."""
        return self.model.vocabulary

    @property
    def name(self) -> str:
        """What the model is called."""
        return min(self.settings.aliases) if self.settings.aliases else self.model.info.path.name

    @property
    def fingerprint(self) -> str:
        """What answers were computed with. Clients of llama-server expect a build number: b, and digits."""
        return build_info()

    def submit(
        self, prompts: Sequence[Sequence[int]], fields: GenerationFields, *, n_probs: int, chat: Rendered | None = None
    ) -> list[Answer]:
        """Ask for what a request asks for. Raises ApiError."""
        settings = self.settings
        params = params_of(fields, settings.params, self.vocabulary, n_probs=n_probs, shifts=settings.has_context_shift)
        params = replace(params, draft_owner=asker.get())  # texts are shared between requests with the same key only
        if chat:
            params = replace(params, chat=chat.prompt, reasoning_budget=chat.reasoning_budget)
        options = options_of(
            fields,
            n_probs=n_probs,
            n_slots=self.engine.n_slots,
            ping_s=settings.ping_s,
            is_verbose=settings.is_verbose,
        )
        return self.engine.submit(prompts, params, options)


def state_of(request: Request) -> ServerState:
    """The state of the server that got the request."""
    return cast(ServerState, request.app.state.server)


def build_info() -> str:
    """Which pymtp this is."""
    from pymtp.version import __version__

    return f"b{__version__}-pymtp"
