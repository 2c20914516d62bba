// What every Runtime has in common whose calls a RuntimeClient asks of a mover,
// in this process or in a daemon. `Base` is Runtime, or an interface of its.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/client/runtime_client.h"
#include "terrace/runtime.h"

namespace terrace {

template <typename Base>
class AskingRuntime : public Base {
 public:
  absl::StatusOr<TensorId> Register(const TensorSpec& spec) final {
    const absl::StatusOr<std::vector<TensorId>> ids =
        Register(absl::MakeConstSpan(&spec, 1));
    if (!ids.ok()) return ids.status();
    return ids->front();
  }
  absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const TensorSpec> specs) final {
    return client().Register(specs);
  }
  absl::Status Unregister(TensorId tensor) final {
    return client().Unregister(tensor);
  }
  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(int64_t slot_bytes,
                                                          int slots,
                                                          Time deadline) final {
    return client().OpenQueue(slot_bytes, slots, deadline, "");
  }
  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline,
      absl::string_view tier) final {
    return client().OpenQueue(slot_bytes, slots, deadline, tier);
  }
  absl::StatusOr<std::unique_ptr<ByteQueue>> OpenBytes(
      int64_t window_bytes, absl::string_view tier) final {
    return client().OpenBytes(window_bytes, tier);
  }
  absl::StatusOr<Pin> Acquire(TensorId tensor, Access access,
                              Time deadline) final {
    return client().Acquire(tensor, access, deadline);
  }
  void Prefetch(absl::Span<const TensorId> tensors) final {
    client().Prefetch(tensors);
  }

 private:
  virtual RuntimeClient& client() = 0;
};

}  // namespace terrace
