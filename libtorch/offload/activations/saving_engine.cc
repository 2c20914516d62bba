#include "libtorch/offload/activations/saving_engine.h"

#include <torch/csrc/autograd/engine.h>

#include <memory>
#include <utility>

#include "base/mutex.h"
#include "libtorch/offload/activations/saved_activation.h"
#include "libtorch/offload/activations/saving_scope.h"

namespace terrace {
namespace {

using torch::autograd::Engine;
using torch::autograd::SavedVariableHooks;

// LibTorch's own engine runs backward passes: its threads for devices are
// started once in a process, whichever engine comes first.
class SavingEngine final : public Engine {
 public:
  torch::autograd::variable_list execute(
      const torch::autograd::edge_list& roots,
      const torch::autograd::variable_list& inputs, bool keep_graph,
      bool create_graph, bool accumulate_grad,
      const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph,
                                     accumulate_grad, outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& graph_task,
      std::shared_ptr<torch::autograd::Node> graph_root,
      torch::autograd::InputBuffer&& input_buffer) override {
    return get_base_engine().execute_with_graph_task(
        graph_task, std::move(graph_root), std::move(input_buffer));
  }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks()
      override {
    std::shared_ptr<SavingScope> scope = SavingScope::Current();
    if (scope == nullptr) return nullptr;
    return std::make_unique<SavedActivation>(std::move(scope));
  }
};

Engine& Installed() {
  static SavingEngine engine;
  return engine;
}

}  // namespace

absl::Status InstallSavingEngine() {
  static Mutex mutex;
  static bool is_installed = false;
  MutexLock lock(mutex);
  const Engine& present = Engine::get_default_engine();
  if (&present == &Engine::get_base_engine()) {
    torch::autograd::set_default_engine_stub(&Installed);
    is_installed = true;
    return absl::OkStatus();
  }
  if (is_installed && &present == &Installed()) return absl::OkStatus();
  return absl::UnimplementedError(
      "activations: this process has another engine of autograd than "
      "LibTorch's own, such as Python's: there it is "
      "terrace.offload(model, activations=True)");
}

}  // namespace terrace
