// The chunks whose bytes stay in memory between two reads or writes of the
// state, outside of steps: the last one of each dtype, so that parameters of
// several dtypes may come by turns.
//
// One thread at a time. The pipeline and its chunks must outlive it; nothing
// else may fetch through that pipeline meanwhile.
#pragma once

#include <array>
#include <cstddef>

#include "absl/status/statusor.h"
#include "runtime/optimizer/chunks/chunk_layout.h"
#include "runtime/optimizer/step/chunk_pipeline.h"
#include "terrace/pin.h"
#include "terrace/request.h"

namespace terrace {

class HeldChunks {
 public:
  explicit HeldChunks(ChunkPipeline& pipeline) : pipeline_(pipeline) {}

  // The payload of chunk `index`, until the next call or Release. The last
  // chunk of its dtype is released for it, and all others where the window has
  // not room for them too. `access` is looked at when the chunk is not held;
  // as ChunkPipeline::Fetch.
  absl::StatusOr<std::byte*> Hold(int index, const Chunk& chunk, Access access,
                                  absl::Time deadline);

  void Release();

 private:
  struct Held {
    int index = -1;
    Pin pin;
  };
  static constexpr size_t kDTypes = 3;

  ChunkPipeline& pipeline_;
  std::array<Held, kDTypes> held_;  // by dtype
};

}  // namespace terrace
