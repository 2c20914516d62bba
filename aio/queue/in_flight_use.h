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

  void Enter(IoDirection direction, int64_t size_bytes) {
    Use& use = Of(direction);
    use.bytes += size_bytes;
    ++use.pieces;
  }
  void Leave(IoDirection direction, int64_t size_bytes) {
    Use& use = Of(direction);
    use.bytes -= size_bytes;
    --use.pieces;
  }
  // All that another has in use.
  void EnterAll(const InFlightUse& other) { AddAll(other, +1); }
  void LeaveAll(const InFlightUse& other) { AddAll(other, -1); }

  bool empty() const { return use_[0].pieces + use_[1].pieces == 0; }
  int64_t bytes() const { return use_[0].bytes + use_[1].bytes; }

  // A piece larger than the limit has room when it is alone.
  bool HasRoom(int64_t size_bytes, int64_t limit_bytes) const {
    if (empty()) return true;
    return use_[0].pieces + use_[1].pieces < most_pieces_ &&
           bytes() + size_bytes <= limit_bytes;
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
  void AddAll(const InFlightUse& other, int sign) {
    for (int i = 0; i < 2; ++i) {
      use_[i].bytes += sign * other.use_[i].bytes;
      use_[i].pieces += sign * other.use_[i].pieces;
    }
  }

  const int most_pieces_;
  Use use_[2];  // reads, writes
};

}  // namespace terrace
