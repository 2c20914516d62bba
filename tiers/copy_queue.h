// The moves of a Copy transport: cut into equal pieces of at most 1 MiB. The
// next one is of the tier with the fewest under way, so that a slow tier leaves
// the others their share of the threads; of the tier's two directions it is of
// the one with the fewest, so that both move at once; of a direction's it is
// chosen by the classes' schedule of aio/queue/class_schedule.h, within a class
// first in, first out. Copies no bytes: what runs a piece asks for the next one
// and tells how it landed.
//
// A move ends once, when all of its pieces that were taken have landed. The
// first error of a piece, or a cancel before all were taken, drops the others
// and is how the move ends.
//
// One thread at a time.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "aio/io_transfer.h"
#include "aio/queue/class_schedule.h"
#include "aio/queue/path_meter.h"
#include "tiers/medium.h"
#include "tiers/transport.h"

namespace terrace {

// A mapped tier; the other end of its edges is DRAM.
struct CopyEnd {
  TierId tier = kNoTier;
  Medium* medium = nullptr;
};

struct CopyWork;  // a move under way

struct CopyPiece {
  CopyWork* work = nullptr;
  Medium* medium = nullptr;
  IoRequest request;  // kRead: from the medium to `data`

  absl::Status Copy() const;
};

class CopyQueue {
 public:
  static constexpr int64_t kPieceBytes = 1 << 20;

  // Media outlive the queue.
  explicit CopyQueue(const std::vector<CopyEnd>& ends);
  ~CopyQueue();

  // `tag` is unique among a mapped tier's moves under way.
  void Begin(const Move& move);
  void Cancel(Edge edge, uint64_t tag);
  void Promote(Edge edge, uint64_t tag, IoClass io_class);
  // Of all moves what is not taken; what they end as is not told.
  void DropAll();

  // The piece that is to run now; nullopt: none waits.
  std::optional<CopyPiece> Next(absl::Time now);
  // DataLoss of a write is told as Unavailable: the move's source is whole.
  void Landed(const CopyPiece& piece, const absl::Status& status,
              absl::Time now);

  bool has_ended() const { return !ended_.empty(); }
  void TakeEnded(std::vector<Moved>* moved);

  int64_t waiting_pieces() const { return waiting_pieces_; }
  // Moves whose end was not taken.
  int64_t pending() const;
  // Of one mapped tier; busy while a piece runs.
  IoPathStats stats(TierId tier, absl::Time now) const;

 private:
  // Of threads: the next turn is its with the fewest pieces under way; of
  // equals, whose turn was the longest ago.
  struct Share {
    int live_pieces = 0;  // taken and not landed
    int64_t last_turn = 0;
    auto operator<=>(const Share&) const = default;
  };
  struct Way {  // reads or writes
    ClassSchedule schedule;
    Share share;
  };
  struct Side {
    CopyEnd end;
    PathMeter meter;
    Share share;
    Way ways[2];
    bool empty() const {
      return ways[0].schedule.empty() && ways[1].schedule.empty();
    }
  };
  using Key = std::pair<int, uint64_t>;  // side, tag

  Side* NextSide();                 // null: no piece waits
  static Way& NextWay(Side& side);  // not of an empty one
  int SideOf(Edge edge) const;
  Way& WayOf(const CopyWork& work);
  CopyWork* Find(Edge edge, uint64_t tag) const;
  void Drop(CopyWork* work);
  void Settle(CopyWork* work);

  std::vector<Side> sides_;
  std::map<Key, std::unique_ptr<CopyWork>> works_;
  std::vector<Moved> ended_;
  int64_t waiting_pieces_ = 0;
  int64_t next_order_ = 0;
  int64_t next_turn_ = 1;
};

}  // namespace terrace
