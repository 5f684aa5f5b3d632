"""Programs on streamed graphs (NGra, section 3.1): one interval of destinations after another.

In the forward, the values that edges read of their sources are computed in blocks of rows and written to a
store. Then, for each interval of destinations, the chunks of that store are read one after another while the
interval's sums stay in memory; ApplyVertex then runs on the interval in blocks of rows:

    store of x --blocks--> store of sources' values --chunks--> sums of an interval --blocks--> store of output

In the backward, the directions are reversed: blocks of destinations write the rows that sources read to a
store, whose chunks are read for each interval of sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, autograd

from ...errors import InputError
from ...runtime.backends.arguments import Rows
from ...runtime.streaming.store import Store, read_ahead
from ..spans import first_order
from ..streaming.graph import BlockView, StreamedGraph
from ..streaming.rows import Gradient, StreamedRows, add, drop_with, read, write
from ..streaming.sweep import Sweep
from .program import Program, Stages
from .stages import at_vertices
from .streamed_sums import LinearSums, Sums, TapeSums
from .tracing import DST, SRC, attribute

Bounds = tuple[int, int]  # first row of a block, and the row after its last


def applied(
    layer: Stages, program: Program, tensors: list[Tensor], x: StreamedRows, graph: StreamedGraph
) -> StreamedRows:
    """Return a layer's output for this rank's rows. Collective, and so is its backward.

    tensors: the tensors that the call's program reads (`Traced`). Raises InputError for a program that needs a
    row for each edge, which would not fit in memory.
    """
    if program.reason:
        raise InputError(
            f"{type(layer).__name__}: apply_edge has to run in one pass over the edges of a graph that is streamed, "
            f"but needs a row for each edge, because {program.reason}"
        )
    run = _Run(layer, program, tensors, x, graph)
    token: Tensor = _Streamed.apply(run, torch.is_grad_enabled(), x.token, *run.given)
    assert run.out is not None
    return StreamedRows(graph, run.out, token, run.gradient)


class _Streamed(autograd.Function):
    """Autograd node of a layer whose rows and gradients are in stores.

    Its inputs are the token of the layer's input, a scalar that connects layers in the autograd graph, and the
    layer's parameters.
    """

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


class _Run:
    """One forward pass of a layer over stores, and its backward pass.

    sums: the reductions over edges. sources: store of the values that edges read of sources; the backward reads
    it again. out: store of the output. gradient: gradient of the output. reads_vertex, reads_targets: True if
    ApplyVertex, or messages, read rows of destinations. reads_rows: True if messages read the store of x
    itself. copies: True if they read x of sources, or x times a factor per row, and nothing else.
    """

    def __init__(
        self, layer: Stages, program: Program, tensors: list[Tensor], x: StreamedRows, graph: StreamedGraph
    ) -> None:
        assert program.staged is not None
        self.layer, self.stage, self.x, self.graph = layer, program.staged, x, graph
        # Tensors that apply_edge has computed, of parameters or others, get gradients as parameters do.
        given = {id(each): each for each in (*layer.parameters(), *tensors) if each.requires_grad}
        leaves = {
            key: each if each.is_leaf else each.detach().requires_grad_() for key, each in given.items()
        }
        self.given, self.parameters = list(given.values()), list(leaves.values())
        self.tensors = [leaves.get(id(each), each) for each in tensors]
        self.trains = False
        self.sums: Sums
        if program.linear is not None:
            self.sums = LinearSums(layer, program.staged, program.linear, graph)
        else:
            assert program.columns is not None
            self.sums = TapeSums(layer, program.staged, program.columns, self.tensors, graph)
        self.sources: Store | None = None
        self._drop_sources: Callable[[], object] = lambda: None
        self.out: Store | None = None
        self.gradient = Gradient()
        self.reads_vertex = layer.reads_vertex()
        self.reads_targets = bool(self.stage.dst.values)
        self.reads_rows = self.sums.reads_rows and not layer.enters
        values = self.stage.src.values
        self.copies = len(values) == 1 and attribute(values[0], SRC) and not layer.enters
        self._blocks: dict[int, _Block] = {}  # by first row
        self._near: tuple[int, list[Tensor]] | None = None  # an interval, and the operands of its rows
        # By first row, places of the sums for the backward, of blocks whose ApplyVertex has not run.
        self._kept: dict[int, list[Any]] = {}

    # ---- forward

    def forward(self) -> None:
        """Compute the output into the store ``out``."""
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

    def _at_sources(self) -> Store:
        """Return the store of the values that edges read of sources."""
        if self.reads_rows:
            return self.x.store
        store = self.graph.new_store(sum(self.sums.source_widths))
        # Now or, if no backward runs, with this object.
        self._drop_sources = drop_with(self, self.graph, store)
        with torch.no_grad():
            for (low, high), x in self._blocks_of_x([(0, self.graph.rows)]):
                write(store, self.graph.first + low, torch.cat(self._operands(SRC, x, low, high), 1))
        self.graph.meet()
        return store

    def _cut(self, intervals: Iterable[Bounds]) -> Iterator[Bounds]:
        """Cut intervals of rows into blocks and yield their bounds. An empty interval gives one empty block."""
        size = self.graph.block_rows
        for low, high in intervals:
            for first in range(low, max(high, low + 1), size):
                yield first, min(first + size, high)

    def _blocks_of_x(
        self, intervals: Iterable[Bounds], read_x: bool = True
    ) -> Iterator[tuple[Bounds, Tensor]]:
        """Yield the bounds of each block of the intervals, and its rows of x, while the next block is read.

        read_x: False if nothing reads the values of x; the tensors then have the right shape and take no
        memory.
        """
        cut, graph = self._cut(intervals), self.graph
        if read_x:
            rows: Iterator[tuple[Bounds, Tensor]] = read_ahead(
                graph.io, cut, lambda block: self.x.read(*block)
            )
            for block, x in rows:
                yield block, x.to(graph.device)
            return
        nothing = torch.zeros(1, 1, dtype=graph.dtype, device=graph.device)
        for low, high in cut:
            yield (low, high), nothing.expand(high - low, self.x.shape[1])

    def _operands(self, end: str, x: Tensor, low: int, high: int) -> list[Tensor]:
        """Return the operands, that is the values that edges read of rows low .. high - 1 at one of their ends.

        end: SRC or DST. x: these rows of the layer's input.
        """
        values: list[Tensor] = []
        if (self.stage.src if end == SRC else self.stage.dst).values:
            with self.layer.on(BlockView(self.graph, low, high)):
                values = at_vertices(self.stage, end, self.tensors, self.layer.enter(x))
        return self.sums.scaled(end, values, low, high)

    def _summed(self, call: int, rows: Rows) -> list[Tensor]:
        """Sum over the edges of a call; return the reduced messages [n, width], and the backward's sums.

        call: number of a call of the grid's forward direction. rows: the chunks that it reads.
        """
        with torch.no_grad():
            direction = self.sums.grid.forward
            interval = direction.of[call]
            if self._near is None or self._near[0] != interval:
                self._near = None  # frees memory first
                self._near = interval, self._of_destinations(direction.calls[call])
            return self.sums.forward(call, rows, self._near[1], trains=self.trains)

    def _of_destinations(self, bounds: Bounds) -> list[Tensor]:
        """Return the operands of an interval of destinations."""
        blocks = self._blocks_of_x([bounds], self.reads_targets)
        parts = [self._operands(DST, x, *block) for block, x in blocks]
        return [torch.cat(values) for values in zip(*parts, strict=True)]

    def _finished(self, interval: int, results: list[Tensor]) -> list[Tensor]:
        """Return the reduced messages of a finished interval, and move its other sums out of memory."""
        self._near = None
        if self.trains:
            kept = results if self.sums.keeps_sums else results[1:]
            bounds = self.sums.grid.forward.intervals[interval]
            for first, last in self._cut([bounds]):
                part = slice(first - bounds[0], last - bounds[0])
                self._kept[first] = [self.graph.spill.put(each[part]) for each in kept]
        return [results[0].to(self.graph.dtype)]

    def _apply_vertex(self, low: int, high: int, gathered: Tensor) -> None:
        """Run ApplyVertex on the rows low .. high - 1 in blocks, and write its output to the store ``out``.

        gathered: their reduced messages [high - low, width].
        """
        for (first, last), x in self._blocks_of_x([(low, high)], self.reads_vertex):
            block = _Block(self._kept.pop(first, []))
            saved = self.graph.spill.saved(self.layer.parameters(), block.saved)
            view = self.layer.on(BlockView(self.graph, first, last))
            with torch.set_grad_enabled(self.trains), saved, view:
                vertex = block.enter("vertex", x) if self.x.requires_grad else x
                out = self.layer.apply_vertex(
                    vertex, block.enter("accum", gathered[first - low : last - low])
                )
                block.out = _WithoutValues.apply(out)
            if self.out is None:
                self.out = self.graph.new_store(out.shape[1])
            write(self.out, self.graph.first + first, out)
            if self.trains:
                self._blocks[first] = block

    # ---- backward

    def backward(self) -> list[Tensor | None]:
        """Write the gradient of x to a store, and return the gradients of the parameters."""
        graph, grid, given = self.graph, self.sums.grid, self.gradient.store
        assert given is not None and self.out is not None
        found = Gradients(self.parameters)
        back = graph.new_store(self.x.shape[1]) if self.x.requires_grad else None  # gradients of x
        to_sources = self.sums.has_sources and (self.x.requires_grad or self._sources_learn())
        crossing = graph.new_store(self.sums.target_width) if to_sources else None
        # Gradients of x at destinations are written first; gradients at sources are then added to them.
        direct = back if self.reads_vertex or self.reads_targets or not to_sources else None

        def returned(block: Bounds) -> Tensor:
            graph.spill.fetch([*self._blocks[block[0]].saved, *self._blocks[block[0]].kept])
            return read(given, graph.first + block[0], block[1] - block[0])

        intervals = [grid.forward.intervals[j] for j in grid.forward.used]
        incoming: Iterator[tuple[Any, Tensor]] = read_ahead(graph.io, self._cut(intervals), returned)
        blocks = self._blocks_of_x(intervals, self.reads_targets)
        for (bounds, x), (_, gradient) in zip(blocks, incoming, strict=True):
            self._back_of_block(bounds, x, gradient.to(graph.device), direct, crossing, found)
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
        """Return True if the values that edges read of sources depend on parameters."""
        with torch.enable_grad():
            values = self._operands(SRC, self.x.example(self.graph.dtype), 0, 0)
        return any(value.requires_grad for value in values)

    def _back_of_block(
        self,
        bounds: Bounds,
        x: Tensor,
        incoming: Tensor,
        back: Store | None,
        crossing: Store | None,
        found: Gradients,
    ) -> None:
        """Run the backward of ApplyVertex, and of the operands of destinations, on a block of rows.

        incoming: gradient of the block's output. back: store for the gradient of x. crossing: store for the
        rows that sources read in `_back_of_sources`. Both are None if they are not needed. found: gradients of
        the parameters, to which the block's are added.
        """
        (first, last), graph = bounds, self.graph
        block, row = self._blocks.pop(first), graph.first + first
        kept = [graph.spill.get(place) for place in block.kept]
        assert block.out is not None
        if block.out.requires_grad:  # not if ApplyVertex reads neither parameters nor sums
            wanted = [block.token, *self.parameters]
            found.add(autograd.grad(block.out, wanted, incoming, allow_unused=True)[1:])
        of_sum = block.gradients.get("accum")
        if of_sum is None:
            of_sum = torch.zeros(last - first, self.sums.width, dtype=x.dtype, device=x.device)
        published, gradients = self.sums.backward(first, last, of_sum, kept)
        with torch.enable_grad():
            leaf = x.detach().requires_grad_(back is not None)
            operands = self._operands(DST, leaf, first, last)
            values = [*operands[: len(self.stage.dst.values)], *self.sums.shared()]
        through = found.through(values, gradients, leaf)
        if back is not None:
            parts = [each for each in (through, block.gradients.get("vertex")) if each is not None]
            write(back, row, sum(parts[1:], parts[0]) if parts else torch.zeros_like(x))
        if crossing is not None:
            write(crossing, row, torch.cat([*(each.detach() for each in operands), *published], 1))

    def _back_of_sources(self, crossing: Store, back: Store | None, found: Gradients, *, adds: bool) -> None:
        """Compute the gradients that arrive at sources, one interval of sources after another.

        For each interval, sum over the out-edges of its rows, which gives the gradients of the values that
        edges read of these rows, and run the backward of these values, from x and the parameters.

        crossing: store of the rows that destinations have written for their sources. back: store for the
        gradient of x, or None. found: gradients of the parameters, which are added to. adds: True if ``back``
        holds the gradients at destinations already, to which these are added; False if they are to be written.
        """
        grid, first_row, put = self.sums.grid, self.graph.first, add if adds else write
        self._near = None
        sweep = Sweep(self.graph, crossing, grid.backward, self._to_sources)
        with closing(sweep.results()) as results:
            for interval, gradients in results:
                self._near = None
                low, high = grid.backward.intervals[interval]
                for (first, last), x in self._blocks_of_x([(low, high)], not self.copies):
                    with torch.enable_grad():
                        leaf = x.detach().requires_grad_(back is not None)
                        values = self._operands(SRC, leaf, first, last)[: len(gradients)]
                    part = [each[first - low : last - low] for each in gradients]
                    through = found.through(values, part, leaf)
                    if back is not None:
                        put(back, first_row + first, torch.zeros_like(leaf) if through is None else through)
                    del part
                del gradients  # before the next interval is summed

    def _to_sources(self, call: int, rows: Rows) -> list[Tensor]:
        """Return the gradients of the values that edges read of sources, summed over the edges of a call.

        call: number of a call of the grid's backward direction. rows: the chunks that it reads.
        """
        direction, near = self.sums.grid.backward, []
        (low, high), interval = direction.calls[call], direction.of[call]
        with torch.no_grad():
            if self.sums.reads_sources:
                if self._near is None or self._near[0] != interval:
                    assert self.sources is not None
                    self._near = None  # frees memory first
                    values = read(self.sources, self.graph.first + low, high - low).to(self.graph.device)
                    self._near = interval, list(values.split(self.sums.source_widths, 1))
                near = self._near[1]
            return self.sums.to_sources(call, rows, near)


class _Block:
    """What the backward of ApplyVertex needs of a block of rows.

    kept: locations in the scratch file (`Spill`) of the sums that the backward needs. saved: locations of the
    tensors that autograd saved. out: the output's autograd graph, without its values. gradients: after the
    backward, the gradients of ApplyVertex's inputs "vertex" and "accum"; the inputs themselves are not kept.
    """

    def __init__(self, kept: list[Any]) -> None:
        self.kept = kept
        self.saved: list[Any] = []
        self.out: Tensor | None = None
        self.gradients: dict[str, Tensor] = {}
        self.token = torch.zeros((), requires_grad=True)

    def enter(self, name: str, values: Tensor) -> Tensor:
        """Return ``values`` as an input of ApplyVertex; the backward writes its gradient to gradients[name]."""
        entered: Tensor = _Enter.apply(self.token, self.gradients, name, values)
        return entered


class _Enter(autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: Tensor, gradients: dict[str, Tensor], name: str, values: Tensor) -> Tensor:
        ctx.place = gradients, name
        return values.view_as(values)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        gradients, name = ctx.place
        gradients[name] = gradient
        return torch.zeros(()), None, None, None


class _WithoutValues(autograd.Function):
    """Return zeros with the same shape and autograd graph, which take the memory of a single value."""

    @staticmethod
    def forward(ctx: Any, out: Tensor) -> Tensor:
        return out.new_zeros(()).expand(out.shape)

    @staticmethod
    @first_order
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class Gradients:
    """Accumulates gradients of parameters. values: sum for each parameter, or None before the first."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.values: list[Tensor | None] = [None] * len(parameters)

    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add one gradient, or None, for each parameter."""
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                held = self.values[i]
                self.values[i] = gradient.clone() if held is None else held.add_(gradient)

    def through(self, values: Sequence[Tensor], gradients: Sequence[Tensor], leaf: Tensor) -> Tensor | None:
        """Run the backward of ``values``, add gradients of the parameters, and return the gradient of ``leaf``.

        values: tensors computed from ``leaf`` and parameters. gradients: gradient of each. leaf: rows of x.
        Returns None if ``leaf`` needs no gradient, or ``values`` do not depend on it.
        """
        pairs = [(v, g.to(v.dtype)) for v, g in zip(values, gradients, strict=True) if v.requires_grad]
        if not pairs:
            return None
        outputs, given = zip(*pairs, strict=True)
        wanted = [leaf] if leaf.requires_grad else []
        got = autograd.grad(outputs, [*wanted, *self.parameters], given, allow_unused=True)
        self.add(got[len(wanted) :])
        return got[0].detach() if wanted and got[0] is not None else None
