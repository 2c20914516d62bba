// What every kind of Runtime has in common, and which kind Create makes.
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "runtime/local_parts.h"
#include "terrace/runtime.h"

namespace terrace {

absl::StatusOr<std::unique_ptr<Runtime>> Runtime::Create(
    const Options& options) {
  if (!options.daemon.empty()) return Connect(options.daemon, options);
  TERRACE_ASSIGN_OR_RETURN(LocalRuntimeParts parts, PartsOf(options));
  return LocalRuntime::Start(std::move(parts));
}

absl::StatusOr<std::vector<TensorId>> Runtime::Register(
    absl::Span<const TensorSpec> specs) {
  std::vector<TensorId> ids;
  for (const TensorSpec& spec : specs) {
    const absl::StatusOr<TensorId> id = Register(spec);
    if (id.ok()) {
      ids.push_back(*id);
      continue;
    }
    for (const TensorId before : ids) Unregister(before).IgnoreError();
    return id.status();
  }
  return ids;
}

absl::StatusOr<std::unique_ptr<RequestQueue>> Runtime::OpenQueue(
    int64_t slot_bytes, int slots, Time deadline, absl::string_view tier) {
  if (tier.empty() || tier == TierKindName(TierKind::kDram)) {
    return OpenQueue(slot_bytes, slots, deadline);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("a queue at '", tier, "': customers work at dram"));
}

absl::StatusOr<std::unique_ptr<ByteQueue>> Runtime::OpenBytes(
    int64_t /*window_bytes*/, absl::string_view /*tier*/) {
  return absl::UnimplementedError(
      "this kind of runtime has no queues of bytes");
}

absl::Status Runtime::GrowMemory(int64_t bytes) {
  return absl::UnimplementedError(absl::StrCat(
      "memory cannot grow by ", bytes, " bytes in this kind of runtime"));
}

}  // namespace terrace
