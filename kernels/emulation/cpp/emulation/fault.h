// fault.h: reports illegal operations of kernels.
#pragma once
#include <string>

namespace emu {

// `what`, with the running kernel, block and thread.
std::string describe(const char* what);
// From now on a kernel's access to unmapped memory ends its launch, not the process.
void catch_bad_addresses();

}  // namespace emu
