"""Programs on graphs whose rows lie in stores (NGra, section 3.1): one interval of destinations after another.

Forward, blocks of sources compute what moved to them and write it to a store. Then, for each interval of destinations,
the chunks of that store stream past while the interval's sums stay in memory, and ApplyVertex follows at once, a block
of rows at a time:

    store of x --blocks--> store of sources' values --chunks--> sums of an interval --blocks--> store of the output

Backward the same happens the other way round: blocks of destinations write what sources need of them to a store, whose
chunks stream past intervals of sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, autograd

from ...errors import InputError
from ...runtime.backends.arguments import Rows
from ...runtime.streaming.store import Store, read_ahead
from ..first_order import first_order
from ..streaming.graph import StreamedGraph
from ..streaming.rows import Gradient, StreamedRows, add, give_back_with, read, write
from ..streaming.sweep import Sweep
from .program import Program, Stages
from .stages import at_vertices
from .streamed_blocks import Block, BlockStores, Gradients, Inputs, cut_rows, together, without_values
from .streamed_sums import Sums, sums_of
from .tracing import DST, SRC, attribute


def applied(layer: Stages, program: Program, x: StreamedRows, graph: StreamedGraph) -> StreamedRows:
    """Return a layer's output for this rank's rows. Collective, and so is its backward.

    Raises InputError for a program whose edges need tensors, which are larger than the rows that do not fit.
    """
    if program.reason:
        raise InputError(
            f"{type(layer).__name__}: apply_edge has to run in one pass over the edges of a graph that is streamed, "
            f"but needs a row for each edge, because {program.reason}"
        )
    run = _Run(layer, program, x, graph)
    token: Tensor = _Streamed.apply(run, torch.is_grad_enabled(), x.token, *run.parameters)
    assert run.out is not None
    return StreamedRows(graph, run.out, token, run.gradient)


class _Streamed(autograd.Function):
    """A layer, whose rows and gradients go through stores; its tensors are the token of its input, and parameters."""

    @staticmethod
    def forward(ctx: Any, run: _Run, trains: bool, token: Tensor, *parameters: Tensor) -> Tensor:
        run.trains = trains and any(ctx.needs_input_grad)
        run.forward()
        ctx.run = run
        return torch.zeros((), device=run.graph.device)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.run is None:
            raise RuntimeError("backward has run over these rows already; what it needs was freed")
        run, ctx.run = ctx.run, None
        return None, None, torch.zeros_like(gradient), *run.backward()


NONE_NEAR: tuple[int, list[Tensor]] = (-1, [])


class _Run:
    """One forward pass of a layer over stores, and its backward pass.

    sums: what runs over the edges. sources: the store of what destinations read of sources, which the backward reads
    again. out: the output's store, once it is computed. gradient: of the output. reads_vertex, reads_targets: whether
    ApplyVertex, and messages, read rows of destinations. reads_rows: whether messages read the rows x of sources where
    they lie. copies: whether what they read is x, or x times a number for each row.
    """

    def __init__(self, layer: Stages, program: Program, x: StreamedRows, graph: StreamedGraph) -> None:
        assert program.staged is not None
        self.layer, self.stage, self.x, self.graph = layer, program.staged, x, graph
        self.parameters = [each for each in layer.parameters() if each.requires_grad]
        self.trains = False
        self.sums: Sums = sums_of(layer, program, graph)
        self.sources: Store | None = None
        self.out: Store | None = None
        self.gradient = Gradient()
        self.reads_vertex = layer.reads_vertex()
        self.reads_targets = bool(self.stage.dst.values)
        self.reads_rows = self.sums.reads_rows and not layer.enters
        values = self.stage.src.values
        self.copies = len(values) == 1 and attribute(values[0], SRC) and not layer.enters
        self._blocks: dict[int, Block] = {}  # by first row
        self._near: tuple[int, list[Tensor]] = NONE_NEAR  # interval, and what is read of its destinations
        # By first row, places of what sums keep of blocks whose ApplyVertex has not run.
        self._kept: dict[int, list[Any]] = {}

    # ---- forward

    def forward(self) -> None:
        """Compute the output."""
        graph, grid = self.graph, self.sums.grid
        store = self.sources = self._at_sources()
        sweep = Sweep(graph, store, grid.forward, self._summed, self.sums.joined, self._finished)
        with closing(sweep.results()) as results:
            for interval, (gathered,) in results:
                self._apply_vertex(*grid.forward.intervals[interval], gathered)
                del gathered  # before the next interval is summed
        graph.meet()  # others may have read these sources until now
        if not (self.trains and self.sums.reads_sources):
            self._drop_sources()

    def _drop_sources(self) -> None:
        if self.sources is not None and self.sources is not self.x.store:
            self.graph.drop(self.sources)
        self.sources = None

    def _at_sources(self) -> Store:
        """Return the store of what destinations read of sources: that of x where these are the rows themselves."""
        if self.reads_rows:
            return self.x.store
        store = self.graph.new_store(sum(self.sums.source_widths))
        give_back_with(self, self.graph, store)  # also where the backward never runs
        with torch.no_grad():
            for (low, high), x in self._ahead(self._cut(0, self.graph.rows)):
                write(store, self.graph.first + low, torch.cat(self._sources(x, low, high), 1))
        self.graph.meet()
        return store

    def _ahead(
        self, cut: Iterable[tuple[int, int]], read_x: bool = True
    ) -> Iterator[tuple[tuple[int, int], Tensor]]:
        """Yield blocks with their rows of x, of which the next ones are read meanwhile.

        read_x: False gives rows without memory of their own, where nothing reads them.
        """
        width = self.x.shape[1]
        if read_x:
            read_blocks: Iterator[tuple[tuple[int, int], Tensor]] = read_ahead(
                self.graph.io, cut, lambda block: self.x.read(*block)
            )
            return ((block, x.to(self.graph.device)) for block, x in read_blocks)
        nothing = torch.zeros(1, 1, dtype=self.graph.dtype, device=self.graph.device)
        return ((block, nothing.expand(block[1] - block[0], width)) for block in cut)

    def _cut(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield bounds of the blocks of some rows that are computed at a time."""
        return cut_rows(low, high, self.graph.block_rows)

    def _sources(self, x: Tensor, low: int, high: int) -> list[Tensor]:
        """Return what destinations read of rows low .. high - 1."""
        return self._at(SRC, x, low, high)

    def _targets(self, x: Tensor, low: int, high: int) -> list[Tensor]:
        """Return what messages read of destinations low .. high - 1."""
        return self._at(DST, x, low, high)

    def _at(self, end: str, x: Tensor, low: int, high: int) -> list[Tensor]:
        values: list[Tensor] = []
        if (self.stage.src if end == SRC else self.stage.dst).values:
            with self.layer.on(self.graph.block(low, high)):
                values = at_vertices(self.stage, end, self.layer, self.layer.enter(x))
        return self.sums.scaled(end, values, low, high)

    def _summed(self, call: int, rows: Rows) -> list[Tensor]:
        """Return the sums of a call, [n, width], and what the backward needs of them."""
        with torch.no_grad():
            direction = self.sums.grid.forward
            interval = direction.of[call]
            if self._near[0] != interval:
                self._near = NONE_NEAR
                each = self._ahead(self._cut(*direction.calls[call]), self.reads_targets)
                self._near = interval, together([self._targets(x, *block) for block, x in each])
            return self.sums.forward(call, rows, self._near[1], self._shared(), self.trains)

    def _finished(self, interval: int, results: list[Tensor]) -> list[Tensor]:
        """Return an interval's sums; what the backward needs of them goes out of memory."""
        self._near = NONE_NEAR
        if self.trains:
            kept = results if self.sums.keeps_sums else results[1:]
            low, high = self.sums.grid.forward.intervals[interval]
            for first, last in self._cut(low, high):
                self._kept[first] = [self.graph.spill.put(each[first - low : last - low]) for each in kept]
        return [results[0].to(self.graph.dtype)]

    def _shared(self) -> list[Tensor]:
        return self.sums.shared(self.layer)

    def _apply_vertex(self, low: int, high: int, gathered: Tensor) -> None:
        """Run ApplyVertex on an interval in blocks, and write its output."""
        for (first, last), x in self._ahead(self._cut(low, high), self.reads_vertex):
            inputs, view = Inputs(), self.graph.block(first, last)
            places: list[Any] = []
            saved = self.graph.spill.saved(self.layer.parameters(), places)
            with torch.set_grad_enabled(self.trains), saved, self.layer.on(view):
                vertex = inputs.enter("vertex", x) if self.x.requires_grad else x
                accum = inputs.enter("accum", gathered[first - low : last - low])
                out = self.layer.apply_vertex(vertex, accum)
                shell = without_values(out)
            if self.out is None:
                self.out = self.graph.new_store(out.shape[1])
            write(self.out, self.graph.first + first, out)
            if self.trains:
                self._blocks[first] = Block(shell, inputs, places, self._kept.pop(first))

    # ---- backward

    def backward(self) -> list[Tensor | None]:
        """Compute the gradient of x, into a store, and return those of the parameters."""
        graph, grid, given = self.graph, self.sums.grid, self.gradient.store
        assert given is not None and self.out is not None
        found = Gradients(self.parameters)
        back = graph.new_store(self.x.shape[1]) if self.x.requires_grad else None  # gradients of x
        to_sources = self.sums.has_sources and (self.x.requires_grad or self._sources_learn())
        crossing = graph.new_store(self.sums.target_width) if to_sources else None
        # Gradients of rows as destinations are written first; those of rows as sources are then added to them.
        direct = back if self.reads_vertex or self.reads_targets or not to_sources else None

        def returned(block: tuple[int, int]) -> Tensor:
            graph.spill.fetch(self._blocks[block[0]].spilled)
            return read(given, graph.first + block[0], block[1] - block[0])

        intervals = grid.forward.intervals
        blocks = [block for j in grid.forward.used for block in self._cut(*intervals[j])]
        incoming: Iterator[tuple[Any, Tensor]] = read_ahead(graph.io, blocks, returned)
        ahead = self._ahead(blocks, self.reads_targets)
        for ((first, last), x), (_, gradient) in zip(ahead, incoming, strict=True):
            self._back_of_block(
                first, last, x, gradient.to(graph.device), BlockStores(direct, crossing), found
            )
        graph.drop(given)
        graph.meet()
        if crossing is not None:
            self._back_of_sources(crossing, back, found, adds=direct is not None)
            graph.meet()
            graph.drop(crossing)
        self._drop_sources()
        if back is not None:
            self.x.gradient.give(graph, back)
        return found.values

    def _sources_learn(self) -> bool:
        """Whether what destinations read of sources depends on parameters."""
        with torch.enable_grad():
            values = self._sources(self.x.example(self.graph.dtype), 0, 0)
        return any(value.requires_grad for value in values)

    def _back_of_block(
        self,
        first: int,
        last: int,
        x: Tensor,
        incoming: Tensor,
        to: BlockStores,
        found: Gradients,
    ) -> None:
        """Run the backward of ApplyVertex, and of what messages read of these destinations, on a block of them."""
        of, row = self._blocks.pop(first), self.graph.first + first
        inputs, kept = of.inputs, [self.graph.spill.get(place) for place in of.kept]
        if of.out.requires_grad:  # not where ApplyVertex reads neither parameters nor sums
            wanted = [inputs.token, *self.parameters]
            found.add(autograd.grad(of.out, wanted, incoming, allow_unused=True)[1:])
        of_sum = inputs.gradients.get("accum")
        if of_sum is None:
            of_sum = torch.zeros(last - first, self.sums.width, dtype=x.dtype, device=x.device)
        per_edge, of_targets, of_shared = self.sums.backward(first, last, of_sum, kept)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(to.back is not None)
            targets, shared = self._targets(leaf, first, last), self._shared()
        through = found.through([*targets, *shared], [*of_targets, *of_shared], leaf)
        if to.back is not None:
            parts = [each for each in (through, inputs.gradients.get("vertex")) if each is not None]
            write(to.back, row, sum(parts[1:], parts[0]) if parts else torch.zeros_like(x))
        if to.crossing is not None:
            write(to.crossing, row, torch.cat([*(each.detach() for each in targets), *per_edge], 1))

    def _back_of_sources(self, crossing: Store, back: Store | None, found: Gradients, *, adds: bool) -> None:
        """Run the backward of what destinations read of sources: sums over out-edges, and then what moved there.

        adds: whether ``back`` has gradients already.
        """
        grid, first_row, put = self.sums.grid, self.graph.first, add if adds else write
        self._near = NONE_NEAR
        sweep = Sweep(self.graph, crossing, grid.backward, self._to_sources)
        with closing(sweep.results()) as results:
            for interval, gradients in results:
                self._near = NONE_NEAR
                low, high = grid.backward.intervals[interval]
                for (first, last), x in self._ahead(self._cut(low, high), not self.copies):
                    with torch.enable_grad():
                        leaf = x.detach().requires_grad_(back is not None)
                        computed = self._sources(leaf, first, last)
                    part = [each[first - low : last - low] for each in gradients]
                    through = found.through(computed, part, leaf)
                    if back is not None:
                        put(back, first_row + first, torch.zeros_like(leaf) if through is None else through)
                    del part
                del gradients  # before the next interval is summed

    def _to_sources(self, call: int, rows: Rows) -> list[Tensor]:
        """Return what a call gives to the gradients of an interval's values of sources."""
        direction = self.sums.grid.backward
        (low, high), interval = direction.calls[call], direction.of[call]
        with torch.no_grad():
            if self.sums.reads_sources and self._near[0] != interval:
                assert self.sources is not None
                self._near = NONE_NEAR
                values = read(self.sources, self.graph.first + low, high - low).to(self.graph.device)
                self._near = interval, list(values.split(self.sums.source_widths, 1))
            return self.sums.to_sources(call, rows, self._near[1], self._shared())
