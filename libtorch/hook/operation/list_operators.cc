#include "libtorch/hook/operation/list_operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace terrace {
namespace {

using Values = c10::ArrayRef<c10::IValue>;

bool IsOverLists(absl::string_view name) {
  return absl::StartsWith(name, "aten::_foreach_") ||
         absl::StartsWith(name, "aten::_amp_foreach_") ||
         absl::StartsWith(name, "aten::_fused_");
}

// Returns whether a call returns nothing, or one list.
bool ReturnsList(const c10::OperatorHandle& operation) {
  const auto& returns = operation.schema().returns();
  if (returns.empty()) return true;
  return returns.size() == 1 &&
         returns.front().type()->isSubtypeOf(*c10::ListType::ofTensors());
}

}  // namespace

const absl::flat_hash_map<std::string, size_t>& ListOperators() {
  static const auto& operators = *[] {
    auto* const found = new absl::flat_hash_map<std::string, size_t>;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      if (!IsOverLists(name.name)) continue;
      const auto handle = dispatcher.findSchema(name);
      if (!handle.has_value() || !ReturnsList(*handle) ||
          handle->hasKernelForDispatchKey(kListCallKey)) {
        continue;
      }
      found->emplace(c10::toString(name), handle->schema().arguments().size());
    }
    return found;
  }();
  return operators;
}

size_t LengthOf(Values arguments) {
  size_t length = 0;
  for (const c10::IValue& each : arguments) {
    if (!each.isList() || each.toListRef().empty()) continue;
    const size_t own = each.toListRef().size();
    if (length != 0 && own != length) return 0;
    length = own;
  }
  return length;
}

int64_t MostBytesOfPart(ByteWindow& window) {
  return window.room().window_bytes() / 2;
}

bool NeedsParts(const at::RecordFunction& function, const OperationPins& pins) {
  if (!pins.is_away() || !IsOverLists(function.name())) return false;
  const bool is_large =
      absl::c_any_of(pins.shares(), [](const OperationPins::Share& share) {
        return share.bytes > MostBytesOfPart(*share.window);
      });
  const auto name = function.operator_name();
  if (!is_large || !name.has_value()) return false;
  const auto own = ListOperators().find(c10::toString(*name));
  if (own == ListOperators().end()) return false;
  // An interpreter's stack may have other values below the arguments.
  const Values inputs = function.inputs();
  return inputs.size() >= own->second &&
         LengthOf(inputs.slice(inputs.size() - own->second)) > 1;
}

}  // namespace terrace
