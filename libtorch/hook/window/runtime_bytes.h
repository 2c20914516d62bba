// RuntimeBytes takes each tensor of a Runtime by a queue of its own, so that
// the tensor is in no more memory than it takes.
//
// RuntimeBytes is thread-safe. No call waits for ever: a fetch may take as long
// as `patience`.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "terrace/runtime.h"

namespace terrace {

class RuntimeBytes {
 public:
  RuntimeBytes(Runtime& runtime, absl::Duration patience)
      : runtime_(runtime), patience_(patience) {}

  absl::Duration patience() const { return patience_; }

  // Makes room, or waits until then for others to do so. Returns whether
  // something has changed; with an error the caller gives the room up.
  using MakeRoom = absl::FunctionRef<absl::StatusOr<bool>(absl::Time until)>;

  // What a caller asks for. With `own_bytes`, which is the tensor's size, the
  // tensor comes into room of its own, which is free again when the tensor has
  // gone below after its pin's end. Without them the tensor stays in memory for
  // as long as nothing else needs the room.
  struct Wanted {
    TensorId tensor;
    Access access = Access::kUpdate;
    int64_t own_bytes = 0;
  };

  // Calls Runtime::Register. Where every path has refused a write, the paths
  // are tried again, as by each Ask, and Register is called once more.
  absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const TensorSpec> specs) const;
  // Asks for the tensor, and does not wait for it. Where there is no room for
  // it, waits for tensors that are being written back, then calls `make_room`,
  // and so on, for as long as `patience`.
  absl::StatusOr<std::unique_ptr<RequestQueue>> Ask(const Wanted& wanted,
                                                    MakeRoom make_room) const;
  // Asks for the tensor. Returns ResourceExhausted when there is no room at
  // once.
  absl::StatusOr<std::unique_ptr<RequestQueue>> AskAtOnce(TensorId tensor);
  // Waits until the tensor is there. After Aborted the caller has to ask for it
  // again.
  absl::StatusOr<Pin> Take(RequestQueue& queue) const;

 private:
  absl::StatusOr<std::unique_ptr<RequestQueue>> AskForOwn(const Wanted& wanted,
                                                          absl::Time end) const;
  absl::StatusOr<std::unique_ptr<RequestQueue>> Push(
      std::unique_ptr<RequestQueue> queue, TensorId tensor,
      Access access) const;

  Runtime& runtime_;
  const absl::Duration patience_;
};

}  // namespace terrace
