"""Batched generation: each sequence's prompt in one pass, then a token at a time, greedily.

All micro-batches of a replica are prefilled, and then decoded together, round by round, so that
they fill a pipeline. Stages pass hidden states on to their neighbours; the last stage sends the
tokens that it chose back to the first. Replicas share nothing but experts. Yet all ranks wait for
each other at the end of prefill and of decode, so that the GPUs' power belongs to one of the two.
Batches are static, and no token ends a sequence. If the cell asks for CUDA graphs, a token is
decoded by replaying one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workflow_lib.records.cell import Cell
from workflow_lib.records.training import Precisions
from workflow_lib.trainers.native.collectives import Group, group_rank, group_size
from workflow_lib.trainers.native.device import on_gpu
from workflow_lib.trainers.native.key_value_cache import KeyValueCache, MovingPlace, Place
from workflow_lib.trainers.native.layers import Attention, PositionEmbedding
from workflow_lib.trainers.native.mesh import Mesh, end_stages_group
from workflow_lib.trainers.native.model import build, held_parameters, parts, split_into_stages
from workflow_lib.trainers.native.precisions import DTYPES, named
from workflow_lib.trainers.native.weights import Weights

#: how many sends of hidden states may be pending before a stage waits for the oldest
_SENT_AHEAD = 2


class GenerationEngine:
    """A cell's model on this rank, and the caches of its replica's sequences."""

    def __init__(self, cell: Cell, mesh: Mesh) -> None:
        """Build the model. If there are several ranks, the process groups must exist already."""
        model, training, degrees = cell.model, cell.training, mesh.degrees
        self._model, self._training, self._mesh = model, training, mesh
        self._dtype = DTYPES[training.held_precision]
        sequence = parts(model, Weights(mesh, training.seed, self._dtype), training)
        mine = split_into_stages(sequence, degrees.layers_of_stages(model.layers))[mesh.place.pp]
        #: the parts of this stage
        self.parts = build(mine)
        self.parameters = held_parameters(self.parts)
        self._first, self._last = mesh.place.pp == 0, mesh.place.pp == degrees.pp - 1
        # Final norm and head only run for the last token of a prompt, whose logits are needed.
        modules = list(self.parts)
        self._body, self._head = (modules[:-2], modules[-2:]) if self._last else (modules, [])
        inner = list(self.parts.modules())
        self._attentions = [part for part in inner if isinstance(part, Attention)]
        self._placed = [part for part in inner if isinstance(part, (Attention, PositionEmbedding))]
        micro_batches = range(training.micro_batches(degrees.dp))
        self._caches = [
            [self._cache(attention) for attention in self._attentions] for _ in micro_batches
        ]
        self._places: list[Place] = []
        # A communicator of their own, because tokens go in the other direction than hidden states.
        self._token_group = end_stages_group(degrees) if degrees.pp > 1 else None
        self._sent_states: deque[tuple[dist.Work, Tensor]] = deque()
        self._sent_tokens: deque[tuple[dist.Work, Tensor]] = deque()
        self._chosen: list[Tensor | None] = []
        # Captured before the first step, so that no step's time contains it.
        self._graphs = [self._graph(index) for index in micro_batches if training.cuda_graphs]

    def close(self) -> None:
        """Let graphs go: NCCL ends no communicator that one of them holds, but waits for ever."""
        self._graphs.clear()

    def modules(self) -> Sequence[nn.Module]:
        """The modules of the model that this rank holds."""
        return list(self.parts)

    def precisions(self) -> Precisions:
        """The precision of the weights; there are no others."""
        return Precisions(named(weight.dtype for weight in self.parts.parameters()))

    def _cache(self, attention: Attention) -> KeyValueCache:
        return KeyValueCache(
            self._training.micro_batch_size,
            self._model.sequence_length,
            attention.kv_heads,
            attention.head_size,
            self._dtype,
            self._mesh.device,
        )

    @torch.inference_mode()
    def _graph(self, micro_batch: int) -> DecodeGraph:
        place = MovingPlace(self._model.sequence_length, self._dtype, self._mesh.device)

        def following(token: Tensor) -> Tensor:
            chosen = self._run(micro_batch, place, token, 1)
            assert chosen is not None, "a graph holds all stages"
            return chosen

        return DecodeGraph(following, place, self._training.micro_batch_size, self._mesh.device)

    @torch.inference_mode()
    def prefill(self, prompts: Sequence[Tensor]) -> None:
        """Run a step's prompts, [micro-batch size, prompt length] each, and choose the first token
        of each sequence. When this rank's device has finished the work, all ranks' devices have."""
        self._places = [Place() for _ in prompts]
        length = prompts[0].shape[1]
        chosen = [self._pass(index, prompt, length) for index, prompt in enumerate(prompts)]
        self._chosen = [self._returned(token) for token in chosen]
        self._meet()

    @torch.inference_mode()
    def decode(self) -> list[Tensor] | None:
        """Generate the other tokens of the prefilled prompts, and wait for all ranks again.

        Returns all chosen tokens, [micro-batch size, generated tokens] for each micro-batch; None
        on ranks without the last stage.
        """
        if self._graphs:
            return self._decode_by_graphs()
        rounds = [self._chosen]
        for number in range(1, self._training.generated_tokens):
            chosen = []
            for index in range(len(self._caches)):
                token = rounds[-1][index]
                if number > 1:
                    token = self._returned(token)
                chosen.append(self._pass(index, token, 1))
            rounds.append(chosen)
        # The last round's tokens are not used, but they were sent and must be received.
        if self._training.generated_tokens > 1:
            for token in rounds[-1]:
                self._returned(token)
        self._meet()
        return _by_micro_batch(rounds) if self._last else None

    def _decode_by_graphs(self) -> list[Tensor]:
        rounds = [self._chosen]
        for graph, place, token in zip(self._graphs, self._places, self._chosen, strict=True):
            assert token is not None, "a graph holds all stages"
            graph.begin(token, place.length)
        for _ in range(1, self._training.generated_tokens):
            rounds.append([graph.following() for graph in self._graphs])
        self._meet()
        return _by_micro_batch(rounds)

    def _pass(self, micro_batch: int, tokens: Tensor | None, length: int) -> Tensor | None:
        """Run ``length`` new tokens of a micro-batch; the last stage chooses the tokens that
        follow.

        Only the first stage takes ``tokens``. Returns [micro-batch size, 1] on the last stage, else
        None.
        """
        place = self._places[micro_batch]
        chosen = self._run(micro_batch, place, tokens, length)
        place.length += length
        return chosen

    def _run(
        self, micro_batch: int, place: Place, tokens: Tensor | None, length: int
    ) -> Tensor | None:
        for attention, cache in zip(self._attentions, self._caches[micro_batch], strict=True):
            attention.cache = cache
        for placed in self._placed:
            placed.place = place
        x = self._received_states(length) if tokens is None or not self._first else tokens
        for module in self._body:
            x = module(x)
        if not self._last:
            self._send_states(x)
            return None
        x = x[:, -1:]
        for module in self._head:
            x = module(x)
        token = greedy(x, self._model.vocabulary_size, self._mesh.tp_group)
        if self._token_group is not None:
            work = dist.isend(token, group=self._token_group, group_dst=0)
            assert work is not None
            self._sent_tokens.append((work, token))
        return token

    def _returned(self, token: Tensor | None) -> Tensor | None:
        """On the first stage, receive the token that the last stage chose; elsewhere return
        ``token``."""
        if not self._first or self._token_group is None:
            return token
        token = torch.empty(
            (self._training.micro_batch_size, 1), dtype=torch.int64, device=self._mesh.device
        )
        dist.recv(token, group=self._token_group, group_src=1)
        return token

    def _received_states(self, length: int) -> Tensor:
        shape = (self._training.micro_batch_size, length, self._model.hidden_size)
        states = torch.empty(shape, dtype=self._dtype, device=self._mesh.device)
        dist.recv(states, group=self._mesh.pp_group, group_src=self._mesh.place.pp - 1)
        return states

    def _send_states(self, x: Tensor) -> None:
        x = x.contiguous()
        work = dist.isend(x, group=self._mesh.pp_group, group_dst=self._mesh.place.pp + 1)
        assert work is not None
        self._sent_states.append((work, x))
        if len(self._sent_states) > _SENT_AHEAD:
            self._sent_states.popleft()[0].wait()

    def _meet(self) -> None:
        """Wait for all that was sent, and for all ranks.

        Sends of tokens are not waited for earlier: the first stage receives them only after it has
        sent hidden states, which this rank would then not receive.
        """
        for sent in (self._sent_states, self._sent_tokens):
            while sent:
                sent.popleft()[0].wait()
        if self._mesh.degrees.world_size > 1:
            dist.all_reduce(torch.zeros(1, device=self._mesh.device))


def _by_micro_batch(rounds: list[list[Tensor | None]]) -> list[Tensor]:
    """The tokens of each micro-batch, [micro-batch size, rounds]."""
    whole = zip(*rounds, strict=True)
    return [torch.cat([token for token in tokens if token is not None], dim=1) for tokens in whole]


def greedy(logits: Tensor, vocabulary_size: int, group: Group) -> Tensor:
    """The most likely token of each sequence, [batch, 1]; padding of the vocabulary is never
    chosen.

    ``logits`` is this rank's slice, [batch, 1, padded vocabulary / group size].
    """
    rows = logits.shape[-1]
    first = group_rank(group) * rows
    ids = torch.arange(first, first + rows, device=logits.device)
    logits = logits.float().masked_fill(ids >= vocabulary_size, -torch.inf)
    highest, place = logits.max(dim=-1)
    token = place + first
    if group_size(group) > 1:
        everywhere = highest.clone()
        dist.all_reduce(everywhere, op=dist.ReduceOp.MAX, group=group)
        # Of equal logits the lowest token, so that all ranks agree.
        token = token.masked_fill(highest < everywhere, vocabulary_size)
        dist.all_reduce(token, op=dist.ReduceOp.MIN, group=group)
    return token


#: runs before the capture, in which libraries choose kernels and allocate their workspaces
_WARM_UPS = 3


class DecodeGraph:
    """Chooses the token behind each sequence of a micro-batch, and the one behind that.

    Kernels that decode a token take microseconds each, and the host needs longer to launch them. A
    graph is captured once, and a single call then launches all of its kernels. On a CPU, which has
    no graphs, the same operations run one by one.
    """

    def __init__(
        self,
        following: Callable[[Tensor], Tensor],
        place: MovingPlace,
        sequences: int,
        device: torch.device,
    ) -> None:
        """``following`` takes and returns tokens, [sequences, 1]. It runs all layers at ``place``,
        whose caches must not hold anything yet: on a GPU it is run here, to be captured.
        """
        self._following, self._place = following, place
        self._token = torch.zeros((sequences, 1), dtype=torch.int64, device=device)
        self._replay = self._run
        if on_gpu(device):
            self._replay = self._captured(device).replay

    def begin(self, token: Tensor, length: int) -> None:
        """Start from ``token``, the last that was chosen; ``length`` tokens are before it."""
        self._token.copy_(token)
        self._place.move(length)

    def following(self) -> Tensor:
        """Choose the tokens that follow the last ones, [sequences, 1]."""
        self._replay()
        return self._token.clone()

    def _run(self) -> None:
        self._place.look()
        self._token.copy_(self._following(self._token))
        self._place.advance()

    def _captured(self, device: torch.device) -> torch.cuda.CUDAGraph:
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                self._place.move(0)
                self._run()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events in a thread of its own, which must not end the capture.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            self._run()
        return graph
