// What the module _cuda has of the PEs of a job.
#pragma once
#include <nanobind/nanobind.h>

void bind_nvshmem(nanobind::module_& module);
