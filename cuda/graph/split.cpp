#include "bind.h"

void bind_split(nb::module_&) {}
