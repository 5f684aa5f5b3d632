// What the module _cuda has of the GPUs of this process.
#pragma once
#include <nanobind/nanobind.h>

void bind_device(nanobind::module_& module);
