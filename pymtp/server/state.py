"""What the endpoints share: the served model, the settings, and how a request's fields become answers.

Knows no API's words.
"""

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, cast

from starlette.requests import Request

from pymtp.chat.template import ChatTemplate
from pymtp.loading.vocabulary import Vocabulary
from pymtp.model import Model
from pymtp.version import __version__

from .answer import LiveAnswer
from .fields import GenerationFields
from .logs import log
from .parameters import options_of, params_of
from .served_model import ServedModel
from .settings import ServerSettings


class ServerState:
    """State that all requests of a server share."""

    key_id = ""
    """A hash of the API key that a request came with; empty where none is needed."""

    def __init__(self, served: ServedModel, settings: ServerSettings) -> None:
        self.served = served
        self.settings = settings
        self._templates: dict[Model, ChatTemplate] = {}  # of the model, once it is asked for

    @property
    def template(self) -> ChatTemplate:
        """The chat template, ChatML for a model without one, as in llama-server. Raises what ChatTemplate raises."""
        model = self.model
        template = self._templates.get(model)
        if template is None:  # other threads may make one at the same time
            source = self.settings.chat_template
            if source is None and model.vocabulary.chat_template is None:
                log("no chat template", level="warning", use="chatml; --chat-template-file names another")
                source = "chatml"
            template = ChatTemplate(model.vocabulary, source)
            self._templates.clear()
            self._templates[model] = template
        return template

    @property
    def model(self) -> Model:
        """The model. Raises ApiError while there is none."""
        return self.served.model

    @property
    def vocabulary(self) -> Vocabulary:
        return self.model.vocabulary

    @property
    def name(self) -> str:
        """What the model is called."""
        return min(self.settings.aliases) if self.settings.aliases else self.model.info.path.name

    @property
    def cache_scope(self) -> str:
        """Whose cache a request reuses."""
        return "" if self.settings.shares_cache else self.key_id

    def submit(
        self, prompts: Sequence[Sequence[int]], fields: GenerationFields, *, n_probs: int | None, **of_chat: Any
    ) -> list[LiveAnswer]:
        """Ask for what a request asks for; `of_chat` are parameters that chats alone have. Raises ApiError."""
        settings = self.settings
        n_keep = settings.n_keep if settings.has_context_shift else None
        params = params_of(fields, settings.params, self.vocabulary, n_probs=n_probs, n_keep=n_keep)
        # texts are shared between requests with the same key only
        params = replace(params, cache_scope=self.cache_scope, draft_owner=self.key_id, **of_chat)
        options = options_of(fields, n_probs=n_probs, n_slots=self.served.n_slots, settings=settings)
        return self.served.submit(prompts, params, options)


def state_of(request: Request) -> ServerState:
    """The state of the server that got the request, for the key that came with it."""
    server = cast(ServerState, request.app.state.server)
    key_id: str = getattr(request.state, "key_id", "")
    if not key_id:
        return server
    own = copy(server)
    own.key_id = key_id
    return own


def build_info() -> str:
    """Which pymtp this is. Clients of llama-server expect a build number: b, and digits."""
    return f"b{__version__}-pymtp"
