#include "libtorch/step/in_backward/backward_functions.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <typeinfo>
#include <unordered_set>
#include <utility>
#include <vector>

namespace terrace {
namespace {

struct Nesting {
  int depth = 0;
  uint64_t outermost = 0;
  std::vector<std::function<void()>> after;
};

Nesting& OfThisThread() {
  thread_local Nesting nesting;
  return nesting;
}

std::unique_ptr<at::ObserverContext> OnStart(const at::RecordFunction&) {
  static std::atomic<uint64_t> number = 0;
  Nesting& nesting = OfThisThread();
  if (nesting.depth++ == 0) nesting.outermost = ++number;
  return nullptr;
}

void OnEnd(const at::RecordFunction&, at::ObserverContext*) {
  Nesting& nesting = OfThisThread();
  if (--nesting.depth > 0) return;
  nesting.outermost = 0;
  const std::vector<std::function<void()>> after =
      std::exchange(nesting.after, {});
  for (const std::function<void()>& each : after) each();
}

}  // namespace

BackwardFunctions::BackwardFunctions()
    : handle_(at::addGlobalCallback(
          at::RecordFunctionCallback(&OnStart, &OnEnd)
              .scopes({at::RecordScope::BACKWARD_FUNCTION}))) {}

BackwardFunctions::~BackwardFunctions() { at::removeCallback(handle_); }

uint64_t BackwardFunctions::Outermost() { return OfThisThread().outermost; }

void BackwardFunctions::AfterOutermost(std::function<void()> call) {
  OfThisThread().after.push_back(std::move(call));
}

bool BackwardFunctions::HasProgramFunctions() {
  const std::unordered_set<::torch::autograd::Node*>* const nodes =
      ::torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return false;
  for (const ::torch::autograd::Node* const node : *nodes) {
    // The nodes of C++ programs are templates, and Python's class is in
    // libtorch_python: only the name of the type tells them.
    const char* const name = typeid(*node).name();
    if (std::strstr(name, "CppNode") != nullptr ||
        std::strstr(name, "PyNode") != nullptr) {
      return true;
    }
  }
  return false;
}

}  // namespace terrace
