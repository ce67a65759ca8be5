// capture.cpp: graphs by stream capture. Nodes keep the order in which they were issued, which respects every
// dependency. Only whether the origin stream has waited for all of them is tracked.
#include <cstring>

#include "state.h"

namespace driver {

namespace {

typedef std::vector<Operation> Nodes;

struct Graph {
  std::shared_ptr<Nodes> nodes;
};
struct Executable {
  std::shared_ptr<const Nodes> nodes;
};
std::unordered_map<void*, std::unique_ptr<Graph>> graphs;
std::unordered_map<void*, std::unique_ptr<Executable>> executables;

// Runs nodes starting at `at`, and advances it.
Result run_nodes(const Nodes& nodes, size_t& at) {
  for (; at < nodes.size(); at++) {
    if (Result result = nodes[at].run()) return result;
    if (state().hangs) return SUCCESS;
  }
  return SUCCESS;
}

enum CaptureMode { GLOBAL, THREAD_LOCAL, RELAXED };

void leave(const std::shared_ptr<Capture>& capture) {
  auto clear = [&](Stream& stream) {
    if (stream.capture != capture) return;
    stream.capture = nullptr;
    stream.before.clear();
  };
  clear(*state().default_stream);
  for (auto& [handle, stream] : state().streams) clear(*stream);
}

}  // namespace

Result add_node(Stream& stream, Operation operation) {
  Capture& capture = *stream.capture;
  if (!capture.is_valid) return CAPTURE_INVALIDATED;
  stream.before.resize(capture.nodes->size() + 1);
  stream.before.back() = true;
  capture.nodes->push_back(std::move(operation));
  return SUCCESS;
}

Result refuse_while_capturing(const char* what) {
  bool refused = false;
  for (auto& weak : state().captures) {
    std::shared_ptr<Capture> capture = weak.lock();
    if (!capture || !capture->origin || capture->mode == RELAXED) continue;
    if (capture->mode == THREAD_LOCAL && capture->thread != std::this_thread::get_id()) continue;
    capture->is_valid = false;
    refused = true;
  }
  if (!refused) return SUCCESS;
  return complain(CAPTURE_UNSUPPORTED, std::string(what) + " is called while a stream is captured");
}

}  // namespace driver

using namespace driver;

API cuStreamBeginCapture_v2(void* handle, int mode) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  if (stream == state().default_stream)
    return complain(CAPTURE_UNSUPPORTED, "the default stream cannot be captured");
  if (stream->capture) return ILLEGAL_STATE;
  if (mode < GLOBAL || mode > RELAXED) return INVALID_VALUE;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream.get();
  capture->thread = std::this_thread::get_id();
  capture->mode = mode;
  stream->capture = capture;
  stream->before.clear();
  state().captures.push_back(capture);
  return SUCCESS;
}
API cuStreamEndCapture(void* handle, void** graph) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  if (graph) *graph = nullptr;
  std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return ILLEGAL_STATE;
  if (capture->mode != RELAXED && capture->thread != std::this_thread::get_id()) return CAPTURE_WRONG_THREAD;
  if (capture->origin != stream.get()) return CAPTURE_UNMATCHED;
  std::vector<bool> before = stream->before;
  leave(capture);
  capture->origin = nullptr;
  if (!capture->is_valid) return CAPTURE_INVALIDATED;
  if (is_armed(NO_CAPTURE)) return complain(CAPTURE_UNSUPPORTED, "injected: no captures");
  before.resize(capture->nodes->size());
  for (bool is_before : before) {
    if (!is_before)
      return complain(CAPTURE_UNJOINED, "a capture ends before its stream has waited for the others");
  }
  auto made = std::make_unique<Graph>(Graph{capture->nodes});
  *graph = made.get();
  graphs[made.get()] = std::move(made);
  return SUCCESS;
}
API cuStreamIsCapturing(void* handle, int* status) {
  ENTER(CONTEXT);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (!stream) return INVALID_HANDLE;
  *status = !stream->capture ? 0 : stream->capture->is_valid ? 1 : 2;
  return SUCCESS;
}
API cuThreadExchangeStreamCaptureMode(int* mode) {
  thread_local int current = GLOBAL;
  std::swap(current, *mode);
  return SUCCESS;
}

API cuGraphGetNodes(void* graph, void**, size_t* count) {
  ENTER(CONTEXT);
  auto found = graphs.find(graph);
  if (found == graphs.end() || !count) return INVALID_VALUE;
  *count = found->second->nodes->size();
  return SUCCESS;
}
API cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  ENTER(CONTEXT);
  auto found = graphs.find(graph);
  if (found == graphs.end() || !executable) return complain(INVALID_VALUE, "a graph that does not exist");
  auto made = std::make_unique<Executable>(Executable{found->second->nodes});
  *executable = made.get();
  executables[made.get()] = std::move(made);
  return SUCCESS;
}
API cuGraphDestroy(void* graph) {
  driver::Call call(driver::Call::INIT);
  return graphs.erase(graph) ? SUCCESS : complain(INVALID_VALUE, "a graph that does not exist");
}
API cuGraphExecDestroy(void* executable) {
  driver::Call call(driver::Call::INIT);
  return executables.erase(executable) ? SUCCESS
                                       : complain(INVALID_VALUE, "an instantiated graph that does not exist");
}
API cuGraphUpload(void* executable, void*) {
  ENTER(CONTEXT);
  return executables.count(executable) ? SUCCESS : INVALID_VALUE;
}
API cuGraphLaunch(void* executable, void* handle) {
  ENTER(CONTEXT);
  auto found = executables.find(executable);
  std::shared_ptr<Stream> stream = find_stream(handle);
  if (found == executables.end()) return complain(INVALID_VALUE, "an instantiated graph that does not exist");
  if (!stream) return INVALID_HANDLE;
  if (is_armed(NO_GRAPH_LAUNCH)) return complain(INVALID_VALUE, "injected: no launches of graphs");
  std::shared_ptr<const Nodes> nodes = found->second->nodes;
  auto at = std::make_shared<size_t>(0);
  auto run = [nodes, at] { return run_nodes(*nodes, *at); };
  return enqueue(*stream, Operation{Operation::GRAPH, run, executable, nullptr, 0});
}

struct UpdateInfo {
  int result;
  void *error_node, *error_from_node;
};
API cuGraphExecUpdate_v2(void* executable, void* graph, UpdateInfo* info) {
  ENTER(CONTEXT);
  enum { OK = 0, TOPOLOGY_CHANGED = 2, NODE_TYPE_CHANGED = 3, FUNCTION_CHANGED = 4 };
  auto to = executables.find(executable);
  auto from = graphs.find(graph);
  if (to == executables.end() || from == graphs.end()) return INVALID_VALUE;
  const Nodes &before = *to->second->nodes, &after = *from->second->nodes;
  int result = before.size() == after.size() ? OK : TOPOLOGY_CHANGED;
  for (size_t i = 0; result == OK && i < before.size(); i++) {
    if (before[i].kind != after[i].kind) result = NODE_TYPE_CHANGED;
    else if (before[i].function != after[i].function) result = FUNCTION_CHANGED;
  }
  if (info) *info = UpdateInfo{result, nullptr, nullptr};
  if (result != OK) return GRAPH_UPDATE_FAILURE;
  to->second->nodes = from->second->nodes;
  return SUCCESS;
}
