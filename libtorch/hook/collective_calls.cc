#include "libtorch/hook/collective_calls.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <typeinfo>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "libtorch/hook/collectives.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation/argument_storages.h"
#include "libtorch/hook/operation_net.h"

namespace terrace {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

// The stack of an interpreter has other values below these.
Values Last(const torch::jit::Stack& stack, size_t count) {
  return Values(stack).slice(stack.size() - count, count);
}

bool IsWork(const c10::Type& type) {
  const auto* const named = type.castRaw<c10::NamedType>();
  return named != nullptr && named->name().has_value() &&
         named->name()->qualifiedName() == "__torch__.torch.classes.c10d.Work";
}

// Gloo's Work of a reduce_scatter never counts as completed; this Work does,
// once a thread has waited for it.
class WaitedWork final : public c10d::Work {
 public:
  explicit WaitedWork(c10::intrusive_ptr<c10d::Work> work)
      : Work(/*rank=*/-1, work->retrieveOpType()), work_(std::move(work)) {}
  bool wait(std::chrono::milliseconds timeout) override {
    const bool is_done = work_->wait(timeout);
    if (is_done) finish();
    return is_done;
  }
  void abort() override { work_->abort(); }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
};

bool NeverCompletes(const c10d::Work& work) {
  return std::strstr(typeid(work).name(), "LambdaWork") != nullptr;
}

// Finds the Work among the last `count` values of the stack. Returns null when
// there is none to wait for.
c10::intrusive_ptr<c10d::Work> WorkAmong(torch::jit::Stack& stack,
                                         size_t count) {
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (!stack[i].isObject() || !IsWork(*stack[i].type())) continue;
    auto work = stack[i].toCustomClass<c10d::Work>();
    if (work.defined() && NeverCompletes(*work)) {
      work = c10::make_intrusive<WaitedWork>(std::move(work));
      stack[i] = c10::IValue(work);
    }
    return work;
  }
  return {};
}

std::shared_ptr<CollectiveUse> UseOf(const std::string& operation,
                                     const Values& arguments) {
  auto use = std::make_shared<CollectiveUse>(operation);
  for (const c10::IValue& argument : arguments) {
    ForEachStorage(argument, [&](c10::StorageImpl* storage) {
      if (storage->device_type() != c10::DeviceType::CPU) {
        const ManagedStorage* const managed = OperationNet::Get().Find(storage);
        TORCH_CHECK_NOT_IMPLEMENTED(
            managed == nullptr, "terrace: '", managed->name(), "': ", operation,
            " of a tensor that is offloaded on ", storage->device().str(),
            " is not there yet; a clone of it is an ordinary tensor");
        return;
      }
      if (use->Has(*storage)) return;
      use->Add(*storage, OperationNet::Get().Pin(storage));
    });
  }
  return use;
}

void Call(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
          torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const std::shared_ptr<CollectiveUse> use =
      UseOf(schema.name(), Last(*stack, schema.arguments().size()));
  use->CheckBytes();
  operation.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER,
                                 c10::DispatchKey::BackendSelect),
      stack);
  const c10::intrusive_ptr<c10d::Work> work =
      WorkAmong(*stack, schema.returns().size());
  if (work.defined()) Collectives::Get().Insert(use, work);
}

bool ReturnsWork(const c10::OperatorHandle& operation) {
  return absl::c_any_of(
      operation.schema().returns(),
      [](const c10::Argument& each) { return IsWork(*each.type()); });
}

}  // namespace

void ListenToCollectives() {
  // The library is never destroyed: collectives may be called as the process
  // ends. Its key is set on every thread, and no kernel of c10d's has this key.
  static const auto& library = *[] {
    constexpr auto kKey = c10::DispatchKey::BackendSelect;
    auto* const made = new torch::Library(torch::Library::IMPL, "c10d", kKey,
                                          __FILE__, __LINE__);
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (!absl::StartsWith(name.name, "c10d::")) continue;
      const auto found = dispatcher.findSchema(name);
      if (!found.has_value() || !ReturnsWork(*found) ||
          found->hasKernelForDispatchKey(kKey)) {
        continue;
      }
      made->impl(name.name.c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&Call>());
    }
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace terrace
