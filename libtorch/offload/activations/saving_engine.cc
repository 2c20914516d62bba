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

// In all other respects this is LibTorch's own engine.
class SavingEngine final : public Engine {
 public:
  ~SavingEngine() override { stop(); }

  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks()
      override {
    std::shared_ptr<SavingScope> scope = SavingScope::Current();
    if (scope == nullptr) return nullptr;
    return std::make_unique<SavedActivation>(std::move(scope));
  }
};

// The engine's end waits for its threads, as that of LibTorch's engine does.
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
