// A transport some of whose moves run out of time: the device has them until
// the test lets go of them, and moves nothing.
//
//   holds.next = 1;          // the next move that begins
//   ... a late end ...
//   holds.release = true;    // the device lets go, and then says how it ended
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tiers/transport.h"

namespace terrace {

// One thread: the mover's, which is the test's.
struct HeldMoves {
  // Moves that begin from here on and are held; those to that tier alone.
  int next = 0;
  TierId to = kNoTier;  // kNoTier: any
  bool release = false;
  absl::Status status;  // how they end then
};

class HeldTransport final : public Transport {
 public:
  HeldTransport(std::unique_ptr<Transport> inner,
                std::shared_ptr<HeldMoves> holds)
      : inner_(std::move(inner)), holds_(std::move(holds)) {}

  void Begin(const Move& move) override {
    const bool is_it = holds_->to == kNoTier || holds_->to == move.edge.to;
    if (holds_->next == 0 || !is_it) return inner_->Begin(move);
    --holds_->next;
    begun_.push_back(move.tag);
  }
  void Cancel(Edge edge, uint64_t tag) override { inner_->Cancel(edge, tag); }
  void Promote(Edge edge, uint64_t tag, IoClass io_class) override {
    inner_->Promote(edge, tag, io_class);
  }
  void Poll(std::vector<Moved>* moved) override {
    for (const uint64_t tag : std::exchange(begun_, {})) {
      moved->push_back({.tag = tag,
                        .status = absl::DeadlineExceededError("held"),
                        .late = true});
      late_.push_back(tag);
    }
    if (holds_->release) {
      for (const uint64_t tag : std::exchange(late_, {})) {
        moved->push_back(
            {.tag = tag, .status = holds_->status, .released = true});
      }
    }
    inner_->Poll(moved);
  }
  int64_t pending() const override {
    return inner_->pending() +
           static_cast<int64_t>(begun_.size() + late_.size());
  }
  absl::Time NextEvent() const override { return inner_->NextEvent(); }

 private:
  const std::unique_ptr<Transport> inner_;
  const std::shared_ptr<HeldMoves> holds_;
  std::vector<uint64_t> begun_;
  std::vector<uint64_t> late_;
};

}  // namespace terrace
