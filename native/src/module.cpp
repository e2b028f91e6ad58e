// The Python extension.
#include <nanobind/nanobind.h>

NB_MODULE(_native, m) { (void)m; }
