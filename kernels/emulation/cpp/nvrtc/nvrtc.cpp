// nvrtc.cpp: a libnvrtc.so.13 that compiles nothing. It performs NVRTC's first checks (headers, options,
// #error) and returns an image with the hash of the source, which the emulated driver accepts.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <sstream>
#include <string>

namespace {

enum Result { SUCCESS = 0, INVALID_INPUT = 3, INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };

struct Program {
  std::string source, name, log, cubin, ptx;
  std::map<std::string, std::string> headers;
  bool compiled = false;
};

constexpr int ARCHITECTURES[] = {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121};

uint64_t fnv1a(const std::string& text, uint64_t hash = 0xcbf29ce484222325) {
  for (unsigned char byte : text) hash = (hash ^ byte) * 0x100000001b3;
  return hash;
}

// Follows #include "..." and stops at an #error outside of any #if. Returns false with a log.
bool check_text(Program& program, const std::string& text, const std::string& file, int depth) {
  std::istringstream lines(text);
  int number = 0, conditions = 0;
  for (std::string line; std::getline(lines, line);) {
    number++;
    size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    size_t start = line.find_first_not_of(" \t", hash + 1);
    std::string directive = start == std::string::npos ? "" : line.substr(start);
    std::string where = file + "(" + std::to_string(number) + "): ";
    if (directive.rfind("if", 0) == 0) conditions++;
    if (directive.rfind("endif", 0) == 0) conditions--;
    if (directive.rfind("error", 0) == 0 && conditions == 0) {
      program.log += where + "error: #error directive: " + directive.substr(5) + "\n";
      return false;
    }
    if (directive.rfind("include", 0) != 0 || conditions > 0) continue;
    size_t open = directive.find('"');
    size_t close = open == std::string::npos ? open : directive.find('"', open + 1);
    std::string header =
        close == std::string::npos ? directive : directive.substr(open + 1, close - open - 1);
    auto found = program.headers.find(header);
    if (found == program.headers.end()) {
      program.log += where + "catastrophic error: cannot open source file \"" + header + "\"\n";
      return false;
    }
    if (depth < 16 && !check_text(program, found->second, header, depth + 1)) return false;
  }
  return true;
}

// "sm_90a" or "compute_90" of a known architecture.
bool is_target(const char* target) {
  int number = 0;
  if (sscanf(target, "sm_%d", &number) != 1 && sscanf(target, "compute_%d", &number) != 1) return false;
  for (int known : ARCHITECTURES) {
    if (known == number) return true;
  }
  return false;
}

}  // namespace

#define API extern "C" __attribute__((visibility("default"))) int

API nvrtcVersion(int* major, int* minor) {
  *major = 13, *minor = 0;
  return SUCCESS;
}
API nvrtcGetNumSupportedArchs(int* count) {
  *count = sizeof ARCHITECTURES / sizeof *ARCHITECTURES;
  return SUCCESS;
}
API nvrtcGetSupportedArchs(int* architectures) {
  memcpy(architectures, ARCHITECTURES, sizeof ARCHITECTURES);
  return SUCCESS;
}
API nvrtcCreateProgram(Program** program, const char* source, const char* name, int headers,
                       const char* const* texts, const char* const* names) {
  if (!program || !source || headers < 0) return INVALID_INPUT;
  *program = new Program;
  (*program)->source = source;
  (*program)->name = name ? name : "default_program";
  for (int i = 0; i < headers; i++) (*program)->headers[names[i]] = texts[i];
  return SUCCESS;
}
API nvrtcDestroyProgram(Program** program) {
  if (!program || !*program) return INVALID_PROGRAM;
  delete *program;
  *program = nullptr;
  return SUCCESS;
}
API nvrtcCompileProgram(Program* program, int count, const char* const* options) {
  if (!program) return INVALID_PROGRAM;
  uint64_t hash = fnv1a(program->source);
  bool real = false;
  for (int i = 0; i < count; i++) {
    std::string option = options[i];
    hash = fnv1a(option, hash);
    size_t equals = option.find('=');
    std::string name = option.substr(0, equals);
    if (name != "--gpu-architecture" && name != "-arch") continue;
    real = option.find("=sm_") != std::string::npos;
    if (equals == std::string::npos || !is_target(option.c_str() + equals + 1)) {
      program->log = "nvrtc: error: invalid value for --gpu-architecture (-arch)\n";
      return INVALID_OPTION;
    }
  }
  for (auto& [name, text] : program->headers) hash = fnv1a(text, fnv1a(name, hash));
  if (!check_text(*program, program->source, program->name, 0)) return COMPILATION;
  char text[64];
  snprintf(text, sizeof text, "%016llx", (unsigned long long)hash);
  if (real) program->cubin = std::string("\x7f" "ELF emulated by skein, source ") + text;
  program->ptx = std::string("// emulated by skein, source ") + text + "\n.version 9.0\n";
  program->compiled = true;
  return SUCCESS;
}
API nvrtcGetProgramLogSize(Program* program, size_t* size) {
  if (!program || !size) return INVALID_INPUT;
  *size = program->log.size() + 1;
  return SUCCESS;
}
API nvrtcGetProgramLog(Program* program, char* log) {
  if (!program || !log) return INVALID_INPUT;
  memcpy(log, program->log.c_str(), program->log.size() + 1);
  return SUCCESS;
}
API nvrtcGetCUBINSize(Program* program, size_t* size) {
  if (!program || !size || !program->compiled) return INVALID_PROGRAM;
  *size = program->cubin.size();
  return SUCCESS;
}
API nvrtcGetCUBIN(Program* program, char* cubin) {
  if (!program || !cubin || program->cubin.empty()) return INVALID_PROGRAM;
  memcpy(cubin, program->cubin.data(), program->cubin.size());
  return SUCCESS;
}
API nvrtcGetPTXSize(Program* program, size_t* size) {
  if (!program || !size || !program->compiled) return INVALID_PROGRAM;
  *size = program->ptx.size() + 1;
  return SUCCESS;
}
API nvrtcGetPTX(Program* program, char* ptx) {
  if (!program || !ptx || !program->compiled) return INVALID_PROGRAM;
  memcpy(ptx, program->ptx.c_str(), program->ptx.size() + 1);
  return SUCCESS;
}
extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int result) {
  switch (result) {
    case SUCCESS: return "NVRTC_SUCCESS";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    default: return "NVRTC_ERROR unknown";
  }
}
