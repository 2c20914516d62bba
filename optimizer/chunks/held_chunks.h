// The chunks whose bytes stay in memory between two reads or writes of the
// state, outside of steps: the last one of each dtype, so that parameters of
// several dtypes may come by turns.
//
// One thread at a time. Chunks and requests must outlive it; nothing else
// may make requests meanwhile.
#pragma once

#include <array>
#include <cstddef>

#include "absl/status/statusor.h"
#include "optimizer/chunks/chunk_requests.h"
#include "optimizer/chunks/chunk_table.h"
#include "terrace/pin.h"
#include "terrace/request.h"

namespace terrace {

class HeldChunks {
 public:
  HeldChunks(const ChunkTable& chunks, ChunkRequests& requests)
      : chunks_(chunks), requests_(requests) {}

  // The payload of chunk `index`, until the next call or Release. The last
  // chunk of its dtype is released for it, and all others where the window has
  // not room for them too. `access` is looked at when the chunk is not held,
  // and is not kRead of one that is fresh.
  absl::StatusOr<std::byte*> Hold(int index, Access access,
                                  absl::Time deadline);

  void Release();

 private:
  struct Held {
    int index = -1;
    Pin pin;
  };
  static constexpr size_t kDTypes = 3;

  absl::StatusOr<Pin> Fetch(int index, Access access, absl::Time deadline);

  const ChunkTable& chunks_;
  ChunkRequests& requests_;
  std::array<Held, kDTypes> held_;  // by dtype
};

}  // namespace terrace
