// fault.h: what becomes of a kernel that does what it must not.
#pragma once
#include <string>

namespace emu {

// `what`, with the kernel, block and thread that are running.
std::string describe(const char* what);
// From here on a kernel's access to memory that is not there ends the launch, not the process.
void catch_bad_addresses();

}  // namespace emu
