#include "bind.h"

void bind_partition(nb::module_&) {}
