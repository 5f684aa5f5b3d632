#include "bind.h"

void bind_buckets(nb::module_&) {}
