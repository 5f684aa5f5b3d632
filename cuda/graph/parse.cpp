#include "bind.h"

void bind_parse(nb::module_&) {}
