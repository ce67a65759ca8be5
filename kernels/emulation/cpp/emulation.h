// emulation.h: CUDA on the CPU, for kernels compiled with g++ -DSKEIN_EMULATED. Included by device.cuh in
// place of what nvcc has built in; ptx_emulated.h beside it takes the place of ptx.cuh.
#pragma once
#include "emulation/types.h"
#include "emulation/collectives.h"
#include "emulation/fibers.h"
#include "emulation/intrinsics.h"
#include "emulation/launch.h"
