#include "bind.h"

void bind_symmetry(nb::module_&) {}
