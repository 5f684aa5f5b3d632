"""Well-known graphs: their published numbers, and those that are assumptions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """The published and the assumed facts of a graph.

    edges: drawn edges; an undirected one is stored twice. tasks: binary tasks of a node with several labels; classes
    are communities then. split: training, validation and test nodes; the others have no label. maximum, median: of the
    in-degree; out_maximum: of the out-degree of a directed graph. homophily: the share of edges that join nodes of one
    class. See SHAPES for what of this is published.
    """

    nodes: int
    edges: int
    features: int
    classes: int
    maximum: float
    median: float | None = None
    tasks: int = 0
    directed: bool = False
    split: tuple[int, int, int] | None = None
    out_maximum: float = 0
    homophily: float = 0.8

    @property
    def mean(self) -> float:
        """Mean in-degree."""
        return self.edges * (1 if self.directed else 2) / self.nodes


# Published are, in this order: nodes, edges, features, classes or tasks, and splits.
#
# reddit: Hamilton, Ying and Leskovec (NeurIPS 2017); 114,615,892 stored edges as DGL and PyG have them.
# products, proteins, papers100M: the Open Graph Benchmark (Hu et al., NeurIPS 2020; ogb.stanford.edu/docs/nodeprop).
#   proteins has no features of nodes; the 8 columns of its edges, averaged at the nodes, are what is commonly used.
# orkut: com-Orkut of SNAP (Yang and Leskovec, ICDM 2012). Its largest degree of 33,313 is in the table of graphs of
#   github.com/DemerzelSun12/subgraph_matching, its median of 45 in GRAPE's report on the Network Repository's copy. It
#   has neither features nor labels; the numbers of them are those of MGG's table (OSDI 2023, table 1).
# enwiki: enwiki-2013 of SNAP, 4,203,323 nodes and 101,311,613 links, which MGG stores in both directions (its table has
#   202,623,226 edges); the Laboratory for Web Algorithmics has 4,206,785 nodes and 101,355,853 arcs. Features and
#   classes as MGG has them.
#
# Assumed are: all other largest degrees and medians, to which the degrees are fitted; homophily; the communities of
# proteins; for graphs without a published split, half of the nodes for training and a quarter for validation.
SHAPES = {
    "reddit": Shape(232_965, 57_307_946, 602, 41, 22_000, split=(153_431, 23_831, 55_703)),
    "products": Shape(2_449_029, 61_859_140, 100, 47, 17_000, split=(196_615, 39_323, 2_213_091)),
    "proteins": Shape(132_534, 39_561_252, 8, 16, 7_700, tasks=112, split=(86_619, 21_236, 24_679)),
    "orkut": Shape(3_072_441, 117_185_083, 128, 32, 33_313, 45),
    "enwiki": Shape(4_203_323, 101_311_613, 300, 12, 430_000, 20),
    "papers100M": Shape(
        111_059_956,
        1_615_685_872,
        128,
        172,
        250_000,
        4,
        directed=True,
        split=(1_207_179, 125_265, 214_338),
        out_maximum=5_000,
    ),
}
