// What of a path's in-flight limit is in use: pieces that are staged or with
// the device, late ones left out, by direction.
//
// One thread at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aio/engine.h"

namespace terrace {

class InFlightUse {
 public:
  // More pieces only add latency (the limit is in bytes).
  static constexpr int kMaxPieces = 64;

  // `slots`, at least one: that the engine has for them.
  explicit InFlightUse(int slots = kMaxPieces)
      : most_pieces_(std::min(slots, kMaxPieces)) {}

  void Enter(const IoRequest& request) {
    Use& use = Of(request.direction);
    use.bytes += request.size_bytes;
    ++use.pieces;
  }
  void Leave(const IoRequest& request) {
    Use& use = Of(request.direction);
    use.bytes -= request.size_bytes;
    --use.pieces;
  }

  // A piece larger than the limit has room when it is alone.
  bool HasRoom(int64_t size_bytes, int64_t limit_bytes) const {
    const int pieces = use_[0].pieces + use_[1].pieces;
    if (pieces == 0) return true;
    return pieces < most_pieces_ &&
           use_[0].bytes + use_[1].bytes + size_bytes <= limit_bytes;
  }
  // Whether one more piece of that direction leaves half of the limit to the
  // other.
  bool LeavesHalf(IoDirection direction, int64_t size_bytes,
                  int64_t limit_bytes) const {
    const Use& use = use_[static_cast<int>(direction)];
    return use.pieces == 0 || (use.pieces < most_pieces_ / 2 &&
                               use.bytes + size_bytes <= limit_bytes / 2);
  }

 private:
  struct Use {
    int64_t bytes = 0;
    int pieces = 0;
  };
  Use& Of(IoDirection direction) { return use_[static_cast<int>(direction)]; }

  const int most_pieces_;
  Use use_[2];  // reads, writes
};

}  // namespace terrace
