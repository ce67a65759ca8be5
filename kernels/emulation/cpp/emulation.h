// emulation.h: CUDA on the CPU, for kernels compiled with g++ -DSKEIN_EMULATED. device.cuh includes it in
// place of nvcc's built-ins; ptx_emulated.h replaces ptx.cuh.
#pragma once
#include "emulation/types.h"
#include "emulation/collectives.h"
#include "emulation/fibers.h"
#include "emulation/intrinsics.h"
#include "emulation/launch.h"
