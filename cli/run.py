"""`pymtp run`: one prompt in, the model's text out.

Owns the order of steps: what can fail cheaply fails before the model is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from . import options as opt
from .answer import Writer, parts_of
from .context import TOY, note_embedded, note_ignored, note_room, warn_beyond_training
from .download import find_model
from .errors import CommandError
from .forced import forced_acceptance
from .interrupt import Interrupt
from .output import Output, print_stderr, shows_color
from .progress import loading, prompting
from .prompt import checked_text, read_prompt, split_positionals
from .report import ended_text, json_report, session_block, stats_block, times_block
from .sampling import with_sampling
from .template import ChatFlags, with_template

if TYPE_CHECKING:
    from pymtp import ChatPrompt, Generation, Image, Model
    from pymtp.loading.images import ImagePrompt

EXAMPLES = """
pymtp run "Write a Python function that checks whether a number is prime."
git diff | pymtp run model.gguf -n 400 --temp 0.3
pymtp run -m model.gguf -f prompt.txt --draft-max 2 --json
pymtp run -hf user/repo:Q4_K_M "Hello"
pymtp run model.gguf -q -sys "You are brief." -p "Who are you?"
pymtp run model.gguf --draft none "Hello"
pymtp run model.gguf --mmproj mmproj.gguf --image photo.jpg "What is this?"
pymtp run model.gguf --reasoning-budget 200 "Primes below 30?" >answer.txt
"""


Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but the text: no statistics, no thinking.")]


@with_template
@with_sampling
@opt.with_model
def run(
    first: Annotated[str | None, typer.Argument(metavar="MODEL", show_default=False)] = None,
    second: Annotated[str | None, typer.Argument(metavar="PROMPT", show_default=False)] = None,
    model_file: opt.ModelFile = None,
    hf_repo: opt.HfRepo = None,
    offline: opt.Offline = False,
    prompt_text: opt.PromptText = None,
    prompt_file: opt.PromptFile = None,
    system: opt.SystemPrompt = None,
    raw: opt.Raw = False,
    image: opt.Images = (),  # type: ignore[assignment]
    max_tokens: opt.NPredict = -1,
    ignore_eos: opt.IgnoreEos = False,
    spec_synth_rates: opt.SynthRates = None,
    spec_synth_len: opt.SynthLen = None,
    logprobs: opt.Logprobs = None,
    quiet: Quiet = False,
    as_json: opt.Json = False,
    color: opt.Color = False,
    verbose: opt.Verbose = False,
    debug: opt.Debug = False,
    model_options: Any = None,
    asked: Any = None,
    chat_flags: Any = None,
) -> None:
    """Generate text from a prompt.

    A single argument is the model if it is an existing path or ends in .gguf, else the prompt. Without a
    prompt argument, the prompt is read from stdin. The model's chat template is applied if it has one.
    Sampling values that the model's file recommends replace the defaults below; pymtp inspect shows them.
    """
    output = Output()
    if logprobs is not None and not as_json:
        raise typer.BadParameter("log probabilities are shown by --json only: add it, or leave out --logprobs")
    path, argument = split_positionals(model_file or hf_repo, prompt_text, first, second)
    system = checked_text(system, "the system prompt") if system else None
    if system and raw:
        raise typer.BadParameter("a system prompt needs the chat template: leave out --raw or -sys")
    if chat_flags.is_given and raw:
        raise typer.BadParameter("--raw applies no chat template: leave it out, or the template's flags")
    import pymtp
    from pymtp.drafting.choice import longest_draft
    from pymtp.embedded import model_path
    from pymtp.gguf.facts import model_facts

    if not debug:
        pymtp.exit_on_abort()
    n_draft = longest_draft(pymtp.DraftParams(draft=model_options["draft"], draft_max=model_options["draft_max"]))
    forced = forced_acceptance(spec_synth_rates, spec_synth_len, n_draft, asked.sampling.get("seed"))
    others: dict[str, Any] = {
        "max_tokens": max_tokens,
        "ignore_eos": ignore_eos,
        "logprobs": logprobs,
        "forced": forced,
    }
    others["reasoning_budget"] = chat_flags.reasoning_budget
    asked.params(**others)  # a wrong flag shows before a model is downloaded
    path = find_model(model_file if hf_repo else path, hf_repo, offline=offline)
    # takes milliseconds; a bad file shows at once
    info = model_facts(path or model_path(), model_options["draft_model"] if path else None)
    generation_params = asked.params(info.sampling, **others)
    if system and (chat_flags.template or info.chat_template) is None:
        raise CommandError(f"{path} has no chat template, which a system prompt needs; leave out -sys")
    text = read_prompt(argument, prompt_file)
    if image and not model_options.get("mmproj"):
        raise CommandError("--image needs the model's projector: --mmproj FILE")
    images = [pymtp.Image(file) for file in image]
    if verbose:
        pymtp.set_log_level("info")
    with (
        loading(path) as on_load,
        pymtp.Model(
            path,
            **model_options,
            chat_template=chat_flags.template,
            on_load=on_load,
        ) as model,
    ):
        note_ignored(model_options)
        warn_beyond_training(model_options["n_ctx"], info.n_ctx_train)
        if model.info.draft_model and not model_options["draft_model"]:
            print_stderr(f"pymtp: drafting with {model.info.draft_source}")
        note_room(model)
        note = model.draft_note or (generation_params.draft_note if model.draft_max else None)
        if note:
            print_stderr(f"pymtp: {note}")
        if forced and model.draft_max:
            print_stderr("pymtp: acceptance is forced: the text is not valid output of the model")
        with prompting() as on_prompt:
            messages = None if raw or not model.has_chat_template else _messages(text, images, system)
            if images:
                chat, prompt = _with_images(model, text, images, messages, chat_flags)
            else:
                chat = model.render(messages, chat_flags.params()) if messages else None
                prompt = chat.text if chat else text
            generation = model.generate(prompt, generation_params, on_prompt=on_prompt, chat=chat)
            writer = Writer(output, hides_text=as_json, hides_thinking=as_json or quiet)
            stopped = _consume(generation, writer, with_drafts=color and shows_color(sys.stdout))
        if as_json:
            if not quiet:
                note_embedded(path)
            output.write(json_report(generation, model, stopped=stopped) + "\n")
        else:
            output.write("\n")
            if not quiet:
                ended = ended_text(generation.finish_reason, stopped=stopped)
                rows = [("model", TOY)] if path is None else []
                print_stderr(
                    stats_block(generation.stats, generation.acceptance, model.plain_tok_s, [*rows, ("ended", ended)])
                )
        if verbose:
            print_stderr(session_block(model.session))
            for block in (times_block(generation.stats),):
                if block:
                    print_stderr(block)
    if stopped:
        raise typer.Exit(130)


def _messages(text: str, images: Sequence[Image], system: str | None) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    content: Any = text
    if images:
        from pymtp.loading.images import split_at_markers

        parts = split_at_markers(_with_markers(text, images), images)
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part}
            for part in parts
        ]
    return [*messages, {"role": "user", "content": content}]


def _with_markers(text: str, images: Sequence[Image]) -> str:
    """The text with a marker for each image: where it has them, or before it."""
    from pymtp import IMAGE_MARKER

    return text if not images or IMAGE_MARKER in text else IMAGE_MARKER * len(images) + text


def _with_images(
    model: Model, text: str, images: Sequence[Image], messages: list[dict[str, Any]] | None, flags: ChatFlags
) -> tuple[ChatPrompt | None, str | ImagePrompt]:
    """The prompt of messages, or without a template of the text, and its tokens."""
    from pymtp import IMAGE_MARKER

    if messages is None:
        return None, model.image_prompt(_with_markers(text, images), images, IMAGE_MARKER)
    marked, images = model.marked(messages)
    chat = model.render(marked, flags.params())
    return chat, model.image_prompt(chat.text, images, model.marker)


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
