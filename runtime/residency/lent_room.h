// Room of the first memory that is lent for a while: nobody here has it, and
// its pages are others'. It is what lies last, so that what is left is as good
// as a smaller memory, in one part but for windows; tensors there leave, and
// come back where the residency has room for them, by their next uses. Pins
// stay, and so does what queues were promised.
//
// A turn looks at so many tensors, and gives or takes so many bytes of pages,
// as either takes its time. What devices had registered is so no more once it
// was lent. Mover only, in its own turns, as links are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/messages/ports.h"
#include "runtime/messages/requests.h"
#include "runtime/motion/links.h"
#include "runtime/residency/byte_pins.h"
#include "runtime/residency/queue_error.h"
#include "runtime/residency/tier_residency.h"
#include "runtime/residency/write_back.h"
#include "runtime/tensor/image_keeper.h"
#include "runtime/tensor/wanted_tensors.h"
#include "tiers/extent.h"
#include "tiers/memory/dram_tier.h"
#include "tiers/memory/page_source.h"

namespace terrace {

// All outlive it.
struct LentRoomParts {
  const Ports* ports = nullptr;
  DramTier* memory = nullptr;  // the first
  TierResidency* residency = nullptr;
  BytePins* byte_pins = nullptr;
  Links* links = nullptr;
  WriteBack* write_back = nullptr;
  PageSource* pages = nullptr;    // null: nothing can be lent
  ImageKeeper* keeper = nullptr;  // null: nobody keeps the image
};

class LentRoom {
 public:
  static constexpr int64_t kPieceBytes = 4 << 20;
  static constexpr int64_t kBytesATurn = 2 * kPieceBytes;
  static constexpr int kTensorsATurn = 1024;
  // That are written back at a time.
  static constexpr int kMostLeaving = 64;

  explicit LentRoom(const LentRoomParts& parts) : parts_(parts) {}

  // The one before, if it is not answered, is answered with what it came to.
  // `asker`: a number that is nobody else's, by which pins are asked for back.
  void Begin(const LendRequest& request, uint64_t asker);
  // What another runtime over the same memory had lent. DataLoss: it is
  // somebody's, or may be in use.
  absl::Status Restore(const Extent& range);
  // In each turn. True: there is more to do at once.
  bool Serve(absl::Time now, const WantedTensors& wanted,
             std::vector<QueueError>* errors);
  void Refuse(const absl::Status& why);
  absl::Time NextDeadline() const {
    return request_.has_value() ? request_->deadline : absl::InfiniteFuture();
  }

  bool is_asked() const { return request_.has_value(); }
  int64_t bytes() const { return bytes_; }  // that are lent
  // With what is to be: nobody else has any of it.
  int64_t reserved_bytes() const { return reserved_bytes_; }

 private:
  struct Piece {
    Reservation room;
    bool is_lent = false;  // else it has its pages yet
  };
  using Pieces = std::map<int64_t, Piece>;  // by offset

  // What may be lent of what was asked for.
  int64_t Target() const;
  // The last bytes of the memory, so many, between the windows.
  std::vector<Extent> Tail(int64_t bytes) const;
  // Whether all residents have been looked at.
  bool LookAtSome(absl::Span<const Extent> tail, const WantedTensors& wanted,
                  std::vector<QueueError>* errors);
  void LookAt(Tensor& tensor, const WantedTensors& wanted,
              std::vector<Tensor*>* start);
  // False: the next turn is to try again.
  bool Unregister(const Extent& range);
  void TakeFree(absl::Span<const Extent> tail, int64_t target);
  void Take(const Extent& range, bool is_lent);
  void GiveBack(Pieces::iterator piece);
  // These two: whether there are more.
  bool LendSome();
  bool ReturnSome();
  // Of what is reserved and has its pages yet, so much stays with what is lent.
  void KeepUnlent(int64_t most);
  void Tell(bool is_over);
  void End();

  const LentRoomParts parts_;
  std::optional<LendRequest> request_;
  uint64_t asker_ = 0;
  Pieces pieces_;
  std::vector<int64_t> unlent_;  // pieces that have their pages
  int64_t bytes_ = 0;
  int64_t reserved_bytes_ = 0;
  int64_t told_bytes_ = 0;
  size_t hand_ = 0;  // the next resident to look at
  // That pins have of the tail: by the last look at all, and by this one.
  int64_t held_bytes_ = 0;
  int64_t seen_held_bytes_ = 0;
};

}  // namespace terrace
