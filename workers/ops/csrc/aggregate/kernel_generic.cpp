#define GRAPHMILL_ISA generic
#define GRAPHMILL_VECTOR_BYTES 16
#include "kernels.h"
