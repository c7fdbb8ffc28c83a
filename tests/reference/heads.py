"""A trunk and its heads in PyTorch: all rows of a text at once, no cache.

The layers are transformers'. How a head joins token and hidden state, which hidden state it is fed and which it hands
on, is written here, after the sources that the table in `families` names; where transformers itself has the whole head,
`official_draft` runs that. Knows no GGUF and no engine.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Generator
from typing import Any

import torch
import transformers
from transformers.modeling_layers import MtpModel

from families import Deviation, State

from .checkpoints import Checkpoint, Head, final_norm, norm_name


class Reference:
    """Logits of trunk and heads for a text. `fed`: what the heads get of the trunk, `recycled`: what they hand on,
    `shares_index`: whether later steps of a draft see what the index has picked for the first.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        fed: State,
        recycled: State,
        deviation: Deviation | None = None,
        *,
        shares_index: bool = False,
    ) -> None:
        self._model = checkpoint.model
        decoder = checkpoint.model.get_decoder()
        self._embed = checkpoint.model.get_input_embeddings()
        self._heads = [deviate(head, deviation) for head in checkpoint.heads]
        self._fed, self._recycled = fed, recycled
        self._trunk = part_of(decoder, list(decoder.layers[: checkpoint.n_layer]), final_norm(decoder), 0)
        first = [list(decoder.layers).index(head.blocks[0]) for head in checkpoint.heads]
        self._blocks = [part_of(decoder, head.blocks, head.norm, i) for head, i in zip(self._heads, first, strict=True)]
        # rows from the first on for which an index picks; the others see what it has picked for the last of these
        self._n_picking = 0
        if shares_index:
            (block,) = self._blocks
            block.layers[0].self_attn.indexer.register_forward_hook(self._share_picked)

    @torch.no_grad()
    def states(self, tokens: list[int]) -> list[torch.Tensor]:
        """The trunk's hidden states, normed and plain: (len(tokens), n_embd) each."""
        return run(self._trunk, self._embed(torch.tensor([tokens])))

    @torch.no_grad()
    def trunk(self, tokens: list[int]) -> torch.Tensor:
        """Logits: (len(tokens), n_vocab)."""
        return self._logits(self.states(tokens)[0], self._model.lm_head.weight)

    def draft(self, tokens: list[int], script: list[int]) -> torch.Tensor:
        """Logits of a draft after `tokens`, which continues with the tokens of `script`: (len(script), n_vocab)."""
        steps = self.steps(tokens, self.states(tokens[:-1]))
        return torch.stack([next(steps), *(steps.send(token) for token in script[:-1])])

    @torch.no_grad()
    def steps(
        self, tokens: list[int], states: list[torch.Tensor], first_row: int = 0
    ) -> Generator[torch.Tensor, int, None]:
        """Draft after `tokens`, of which the trunk has given `states` for all but the last: yields the logits of each
        step, (n_vocab,), and wants the token to continue with.

        The heads' rows begin at position `first_row`. That at 0 has no hidden state before it, and takes zeros.
        """
        given = self._as_read(states[self._fed == "plain"])
        hidden = torch.cat([torch.zeros(1, given.shape[1]), given])
        self._n_picking = len(tokens) - first_row
        for step in itertools.count():
            k = step % len(self._heads)
            said = self._run_head(k, torch.tensor([tokens])[:, first_row:], hidden[first_row:], first_row)
            tokens = [*tokens, (yield self._logits(said[0][-1], self._heads[k].output))]
            handed_on = self._as_read(said[self._recycled == "plain"])
            # a single head continues after its own last output; of several, each reads all output of the head before it
            if len(self._heads) == 1:
                hidden = torch.cat([hidden, handed_on[-1:]])
            else:
                hidden = torch.cat([torch.zeros(first_row + 1, handed_on.shape[1]), handed_on])

    @torch.no_grad()
    def first_drafts(self, tokens: list[int], first_row: int = 0) -> torch.Tensor:
        """The tokens that the first head drafts after each position from `first_row` on."""
        normed, plain = self.states(tokens)
        hidden = normed if self._fed == "normed" else plain
        rows = torch.cat([torch.zeros_like(hidden[:1]), hidden[:-1]])[first_row:]
        said = self._run_head(0, torch.tensor([tokens])[:, first_row:], rows, first_row)
        return self._logits(said[0], self._heads[0].output).argmax(dim=1)

    def _run_head(self, k: int, tokens: torch.Tensor, hidden: torch.Tensor, first: int) -> list[torch.Tensor]:
        head: Head = self._heads[k]
        embedded, states = head.enorm(self._embed(tokens)), head.hnorm(hidden[None])
        streams = states.unflatten(-1, (-1, embedded.shape[-1]))  # one, or several; each is joined with the token
        both = torch.cat([embedded.unsqueeze(-2).expand_as(streams), streams], dim=-1)
        return run(self._blocks[k], (both @ head.eh_proj.T).flatten(-2), first)

    def _as_read(self, states: torch.Tensor) -> torch.Tensor:
        """Where heads read several streams and `states` is what was made of them: that, for each stream."""
        return states.repeat(1, self._heads[0].hnorm.weight.numel() // states.shape[-1])

    def _share_picked(self, _module: Any, _inputs: Any, picked: torch.Tensor) -> torch.Tensor:
        n = self._n_picking
        return torch.cat([picked[:, :n], picked[:, n - 1 : n].expand(-1, picked.shape[1] - n, -1)], dim=1)

    def _logits(self, normed: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        return normed @ output.T * getattr(self._model, "logit_scale", 1.0)


def official_draft(checkpoint: Checkpoint, tokens: list[int]) -> torch.Tensor:
    """Logits of the first draft after `tokens` as transformers itself computes them: (n_vocab,).

    Its heads have no row at position 0, where there is no hidden state before the token.
    """
    transformers.utils.logging.set_verbosity_error()  # it lists the heads' tensors, which the trunk does not need
    trunk = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint.folder, dtype=torch.float32, attn_implementation="eager"
    )
    heads = MtpModel(trunk, len(checkpoint.heads)).eval()
    for layer, head in zip(heads.layers, checkpoint.heads, strict=True):
        layer.enorm, layer.hnorm, layer.post_norm = head.enorm, head.hnorm, head.norm
        layer.eh_proj.weight = torch.nn.Parameter(head.eh_proj)
        layer.mtp_block.load_state_dict(head.blocks[0].state_dict())
    with torch.no_grad():
        hidden = trunk(torch.tensor([tokens[:-1]]), output_hidden_states=True).hidden_states[-1]
        positions = torch.arange(1, len(tokens))[None]
        _, logits, _ = heads(torch.tensor([tokens[1:]]), hidden, None, positions, None)
    return logits[0, 0]


def deviate(head: Head, deviation: Deviation | None) -> Head:
    """The head as llama.cpp runs it."""
    head = copy.deepcopy(head)
    if deviation == "rotates":  # queries and keys, although attention has no window
        for block in head.blocks:
            block.self_attn.force_rope = True
    return head


def part_of(decoder: Any, layers: list[Any], norm: Any, first: int) -> Any:
    """`decoder` with only these layers, which begin at number `first`, and another norm after them."""
    part = copy.deepcopy(decoder)
    part.layers = torch.nn.ModuleList(copy.deepcopy(layers))
    setattr(part, norm_name(part), copy.deepcopy(norm))
    config = part.config
    if first and getattr(config, "ple_layer_ids", None):
        config.ple_layer_ids = []
    for key in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):
        if isinstance(getattr(config, key, None), list):
            setattr(config, key, getattr(config, key)[first : first + len(layers)])
    if config.num_hidden_layers != len(layers):
        config.num_hidden_layers = len(layers)
    return part


def run(part: Any, rows: torch.Tensor, first: int = 0) -> list[torch.Tensor]:
    """Hidden states after the norm and before it, (n_rows, n_embd) each. `first`: the position of the first row."""
    norm = final_norm(part)
    before: list[torch.Tensor] = []
    handle = norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0][0]))
    positions = torch.arange(first, first + rows.shape[1])[None]
    n_embd = part.config.hidden_size
    streams = None
    if rows.shape[-1] > n_embd:  # the part would begin with streams that are equal
        layer: Any = part.layers[0]
        streams = layer.register_forward_pre_hook(lambda _, inputs: (rows, *inputs[1:]))
    normed = part(inputs_embeds=rows[..., :n_embd], position_ids=positions, use_cache=False).last_hidden_state[0]
    handle.remove()
    if streams:
        streams.remove()
    return [normed, before[0]]
