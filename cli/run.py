"""`pymtp run`: one prompt in, the model's text out.

Owns the order of steps: what can fail cheaply fails before the model is loaded.
"""

import sys
from collections.abc import Sequence
from typing import Any

import typer

from pymtp import IMAGE_MARKER, ChatParams, Generation, Image, Model
from pymtp.loading.images import split_at_markers

from .answer import Writer, parts_of
from .asked import chat_of
from .context import TOY, Found, load, note_embedded, prepare_library
from .flags import Values
from .interrupt import Interrupt, end_at_next
from .output import CommandError, Output, print_note, print_stderr, shows_color
from .progress import prompting
from .prompt import read_prompt, split_positionals
from .report import ended_text, json_report, stats_block


def run(own: Values) -> None:
    chat_params = chat_of(own)
    output = Output()
    path, argument = split_positionals(own.model_file or own.hf, own.prompt_text, own.first, own.second)
    _check(own, chat_params)
    prepare_library(own)
    found = Found(own, own.model_file if own.hf else path)
    if own.system and not found.has_chat_template:
        raise CommandError(f"{found.path} has no chat template, which a system prompt needs; leave out -sys")
    text = read_prompt(argument, own.prompt_file)
    if own.image and own.mmproj is None:
        raise CommandError("--image needs the model's projector: --mmproj FILE")
    images = [Image(file) for file in own.image]
    with load(found) as model:
        if found.params.forced and model.draft_max:
            print_note("acceptance is forced: the text is not valid output of the model")
        with prompting() as on_prompt:
            if own.raw or not model.has_chat_template:
                marked = _with_markers(text, images)
                generation = model.generate(marked, found.params, images=images, on_prompt=on_prompt)
            else:
                messages = _messages(text, images, own.system)
                generation = model.chat(messages, found.params, chat_params=chat_params, on_prompt=on_prompt)
            writer = Writer(output, hides_text=own.as_json, hides_thinking=own.as_json or own.quiet)
            stopped = _consume(generation, writer, with_drafts=own.color and shows_color(sys.stdout))
            if stopped:
                end_at_next()
        _report(own, output, generation, model, path=found.path, stopped=stopped)
    if stopped:
        raise typer.Exit(130)


def _check(own: Values, chat_params: ChatParams) -> None:
    """Raise BadParameter for flags that contradict each other."""
    if own.logprobs is not None and not own.as_json:
        raise typer.BadParameter("log probabilities are shown by --json only: add it, or leave out --logprobs")
    if own.system and own.raw:
        raise typer.BadParameter("a system prompt needs the chat template: leave out --raw or -sys")
    is_for_chats = own.chat_template or own.chat_template_file or chat_params != ChatParams()
    if is_for_chats and own.raw:
        raise typer.BadParameter("--raw applies no chat template: leave it out, or the template's flags")


def _messages(text: str, images: Sequence[Image], system: str | None) -> list[dict[str, Any]]:
    """The messages of a chat. An image is in the place of its marker, or before the text."""
    content: Any = text
    if images:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
            for part in split_at_markers(_with_markers(text, images), images)
        ]
    before = [{"role": "system", "content": system}] if system else []
    return [*before, {"role": "user", "content": content}]


def _with_markers(text: str, images: Sequence[Image]) -> str:
    """The text with a marker for each image: where it has them, or before it."""
    return text if IMAGE_MARKER in text else IMAGE_MARKER * len(images) + text


def _consume(generation: Generation, writer: Writer, *, with_drafts: bool) -> bool:
    """Write each part of the text as it arrives; return whether Ctrl-C ended the generation."""
    with Interrupt() as interrupt:
        try:
            for part in parts_of(generation, interrupt, with_drafts=with_drafts):
                writer.write(part)
        except KeyboardInterrupt:
            return True
        finally:
            writer.end_thinking()
    return interrupt.requested


def _report(
    own: Values, output: Output, generation: Generation, model: Model, *, path: str | None, stopped: bool
) -> None:
    """Print what follows the text, or with --json everything."""
    if own.as_json:
        if not own.quiet:
            note_embedded(path)
        output.write(json_report(generation, model, stopped=stopped) + "\n")
        return
    output.write("\n")
    if not own.quiet:
        rows = [("model", TOY)] if path is None else []
        rows.append(("ended", ended_text(generation.finish_reason, stopped=stopped)))
        print_stderr(stats_block(generation.stats, generation.acceptance, model.plain_tok_s, rows))
