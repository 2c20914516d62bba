#include "libtorch/hook/list_calls.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation/argument_storages.h"
#include "libtorch/hook/operation/list_operators.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/hook/window/byte_window.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

constexpr auto kKey = kListCallKey;

// Elements of a call's lists.
struct Part {
  size_t first;
  size_t count;
};

// Splits the lists so that of each window a part takes half at most, or has one
// element.
class Splitter {
 public:
  explicit Splitter(const Values& arguments)
      : arguments_(arguments), length_(LengthOf(arguments)) {}

  size_t length() const { return length_; }
  Part After(size_t first) {
    seen_.clear();
    size_t end = first;
    int64_t bytes = 0;
    while (end < length_) {
      int64_t most = INT64_MAX;
      bytes += BytesOf(end, &most);
      if (end > first && bytes > most) break;
      ++end;
    }
    return {first, end - first};
  }

 private:
  // Of what the element adds; `most` becomes what its windows have at least.
  int64_t BytesOf(size_t element, int64_t* most) {
    int64_t bytes = 0;
    for (const c10::IValue& each : arguments_) {
      if (!each.isList() || each.toListRef().empty()) continue;
      ForEachStorage(
          each.toListRef()[element], [&](const c10::StorageImpl* storage) {
            ManagedStorage* const managed = OperationNet::Get().Find(storage);
            if (managed == nullptr || !seen_.insert(storage).second) return;
            *most = std::min(*most, MostBytesOfPart(managed->window()));
            bytes += ResidentBytes(managed->size_bytes());
          });
    }
    return bytes;
  }

  const Values arguments_;
  const size_t length_;
  absl::flat_hash_set<const c10::StorageImpl*> seen_;  // in this part
};

// Returns the argument of a call for a part. Factors of a list's elements may
// be the elements of one tensor.
c10::IValue PartOf(const c10::IValue& argument, const c10::Argument& schema,
                   size_t length, Part part) {
  if (argument.isTensor() && schema.name() == "scalars" &&
      argument.toTensor().dim() == 1 &&
      argument.toTensor().numel() == static_cast<int64_t>(length)) {
    return argument.toTensor().narrow(0, static_cast<int64_t>(part.first),
                                      static_cast<int64_t>(part.count));
  }
  if (!argument.isList() || argument.toListRef().empty()) return argument;
  c10::impl::GenericList elements(argument.toList().elementType());
  for (const c10::IValue& each :
       argument.toListRef().slice(part.first, part.count)) {
    elements.push_back(each);
  }
  return elements;
}

void CallInParts(const c10::OperatorHandle& operation,
                 torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const size_t count = schema.arguments().size();
  const std::vector<c10::IValue> arguments = torch::jit::pop(*stack, count);
  Splitter splitter(arguments);
  c10::List<at::Tensor> results;
  // Autograd has seen the call as a whole.
  const at::AutoDispatchBelowADInplaceOrView below;
  for (size_t first = 0; first < splitter.length();) {
    const Part part = splitter.After(first);
    torch::jit::Stack call;
    for (size_t i = 0; i < count; ++i) {
      call.push_back(
          PartOf(arguments[i], schema.arguments()[i], splitter.length(), part));
    }
    operation.callBoxed(call);
    if (!call.empty()) results.append(call.front().toTensorList());
    first += part.count;
  }
  if (!schema.returns().empty()) stack->emplace_back(std::move(results));
}

void CallLists(const c10::OperatorHandle& operation, c10::DispatchKeySet keys,
               torch::jit::Stack* stack) {
  if (OperationNet::IsInParts()) return CallInParts(operation, stack);
  operation.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

}  // namespace

void ListenToListCalls() {
  // The library is never destroyed: operators are called as the process ends.
  static const auto& library = *[] {
    auto* const made = new torch::Library(torch::Library::IMPL, "aten", kKey,
                                          __FILE__, __LINE__);
    for (const auto& [name, arguments] : ListOperators()) {
      made->impl(name.c_str(),
                 torch::CppFunction::makeFromBoxedFunction<&CallLists>());
    }
    return made;
  }();
  static_cast<void>(library);
}

}  // namespace terrace
