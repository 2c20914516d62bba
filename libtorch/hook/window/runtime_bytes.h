// Tensors of a Runtime, each taken by a queue of its own, so that it is in no
// more memory than it takes.
//
// Thread-safe. Nothing waits for ever: a fetch may take as long as patience.
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

  // Whether something was done for room; an error gives it up.
  using MakeRoom = absl::FunctionRef<absl::StatusOr<bool>()>;

  // What is asked for. With `own_bytes`, the tensor's size: in room of its own,
  // which is free again when the tensor has gone below after its pin's end;
  // else it stays in memory while nothing else needs the room.
  struct Wanted {
    TensorId tensor;
    Access access = Access::kUpdate;
    int64_t own_bytes = 0;
  };

  // Runtime::Register; where every path refused a write they may be tried by
  // another one, as with each Ask.
  absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const TensorSpec> specs) const;
  // Asks for the tensor, and does not wait for it. Where there is no room for
  // it, waits for what is being written back, then for `make_room`, and so
  // on.
  absl::StatusOr<std::unique_ptr<RequestQueue>> Ask(const Wanted& wanted,
                                                    MakeRoom make_room) const;
  // ResourceExhausted where there is no room at once.
  absl::StatusOr<std::unique_ptr<RequestQueue>> AskAtOnce(TensorId tensor);
  // Waits until it is there. Aborted: it has to be asked for again.
  absl::StatusOr<Pin> Take(RequestQueue& queue) const;

 private:
  absl::StatusOr<std::unique_ptr<RequestQueue>> Push(
      std::unique_ptr<RequestQueue> queue, TensorId tensor,
      Access access) const;

  Runtime& runtime_;
  const absl::Duration patience_;
};

}  // namespace terrace
