// The functions by which each file of the module _graph binds its part: host code for graph files, orders and plans.
#pragma once
#include <nanobind/nanobind.h>

#include "python/bindings.h"

namespace nb = nanobind;
using namespace nb::literals;

void bind_blocks(nb::module_& m);     // blocks.cpp
void bind_buckets(nb::module_& m);    // buckets.cpp
void bind_check_traversal(nb::module_& m);  // check_traversal.cpp
void bind_generate(nb::module_& m);   // generate.cpp
void bind_local_graph(nb::module_& m);  // local_graph.cpp
void bind_order(nb::module_& m);      // order.cpp
void bind_parse(nb::module_& m);      // parse/parse.cpp
void bind_parse_table(nb::module_& m);  // parse/parse_table.cpp
void bind_partition(nb::module_& m);  // partition.cpp
void bind_scores(nb::module_& m);    // scores.cpp
void bind_split(nb::module_& m);      // split.cpp
void bind_symmetry(nb::module_& m);   // symmetry.cpp
