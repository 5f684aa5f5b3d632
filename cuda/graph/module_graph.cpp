// The module mgg_hpc._graph.
#include "bind.h"

NB_MODULE(_graph, m) {
  m.doc() = "Native code for graph files: parsing, sorting, drawing, orders, parts and plans.";
  bind_blocks(m);
  bind_buckets(m);
  bind_check_traversal(m);
  bind_generate(m);
  bind_local_graph(m);
  bind_order(m);
  bind_parse(m);
  bind_parse_table(m);
  bind_partition(m);
  bind_scores(m);
  bind_split(m);
  bind_symmetry(m);
}
