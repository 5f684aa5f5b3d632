#include "bind.h"

void bind_generate(nb::module_&) {}
