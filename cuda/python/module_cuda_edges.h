// What GPUs compute edge by edge, as methods of a plan.
#pragma once
#include <nanobind/nanobind.h>

#include "gpu/plan.h"

void bind_edges(nanobind::module_& module, nanobind::class_<mgg::DevicePlan>& plan);
