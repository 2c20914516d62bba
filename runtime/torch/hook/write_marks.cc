#include "runtime/torch/hook/write_marks.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"

namespace terrace {
namespace {

constexpr WrittenArguments kAll(~uint64_t{0});
constexpr WrittenArguments kNone(0);
// Names of programs' own functions may be made up for each call.
constexpr size_t kMostKept = 4096;

// LibTorch's listeners and threads' tables are as the process's.
std::atomic<uint64_t> registration_count = 0;

class Registrations final : public c10::OpRegistrationListener {
 public:
  void onOperatorRegistered(const c10::OperatorHandle&) override {
    ++registration_count;
  }
  void onOperatorDeregistered(const c10::OperatorHandle&) override {
    ++registration_count;
  }
};

WrittenArguments Read(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  if (!schema.has_value()) {
    // LibTorch records these by a bare name beside the operator's own.
    const absl::string_view name = function.name();
    return name == "detach" || name == "detach_" ? kNone : kAll;
  }
  // Takes the tensor out of its graph; LibTorch's zero_grad() begins with it.
  if (schema->name() == "aten::detach_") return kNone;
  uint64_t bits = 0;
  for (size_t i = 0; i < schema->arguments().size() && i < 64; ++i) {
    const c10::AliasInfo* const alias = schema->arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) bits |= uint64_t{1} << i;
  }
  return WrittenArguments(bits);
}

struct Kept {
  std::string name;  // the address may be that of another by now
  WrittenArguments written = kAll;
};

struct KeptByThread {
  uint64_t registrations = 0;
  absl::flat_hash_map<const char*, Kept> by_name;
};

}  // namespace

void ListenToRegistrations() {
  // For as long as the process: operators come and go at its end as well.
  static const auto& listening = *new c10::RegistrationHandleRAII(
      c10::Dispatcher::singleton().addRegistrationListener(
          std::make_unique<Registrations>()));
  static_cast<void>(listening);
}

WrittenArguments WrittenArgumentsOf(const at::RecordFunction& function) {
  if (function.scope() != at::RecordScope::FUNCTION) return kNone;
  thread_local KeptByThread kept;
  const uint64_t registrations =
      registration_count.load(std::memory_order_acquire);
  if (kept.registrations != registrations || kept.by_name.size() > kMostKept) {
    kept.by_name.clear();
    kept.registrations = registrations;
  }
  const char* const name = function.name();
  const auto [found, is_new] = kept.by_name.try_emplace(name);
  Kept& one = found->second;
  if (is_new || std::strcmp(one.name.c_str(), name) != 0) {
    one.name = name;
    one.written = Read(function);
  }
  return one.written;
}

bool NeedsNoBytes(const at::RecordFunction& function) {
  // detach is none of them: state_dict and save fetch by it. detach_ is, under
  // both of its names: zero_grad() would read each gradient to drop it.
  static constexpr absl::string_view kNames[] = {
      "aten::alias",      "aten::as_strided", "aten::detach_",
      "aten::empty_like", "aten::expand",     "aten::permute",
      "aten::select",     "aten::slice",      "aten::squeeze",
      "aten::t",          "aten::transpose",  "aten::unsqueeze",
      "aten::view",       "detach_"};
  return absl::c_binary_search(kNames, absl::string_view(function.name()));
}

}  // namespace terrace
