// The moves of one direction between DRAM and a device: cut into equal pieces,
// each a copy of one stream. Few pieces are in the stream at a time; which one
// goes next is decided when there is room, by class, as aio/queue does it, so
// that a demand waits for those few whatever else is under way.
//
// A move ends once, when all of its pieces that were begun have ended. The
// first error of a piece drops the others and is how the move ends; so do a
// cancel before all were begun, and the device's end, for what is not begun.
// Lateness is that of IoTransfer::timeout: how long no copy ended. A late
// move's begun pieces are the device's until they end (`released`).
//
// One thread at a time; never blocks.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/queue/class_schedule.h"
#include "aio/queue/expiries.h"
#include "aio/queue/path_meter.h"
#include "base/clock.h"
#include "tiers/device/device_space.h"
#include "tiers/transport.h"

namespace terrace {

struct DeviceQueueOptions {
  int64_t piece_bytes = 4 << 20;  // at most; of whole blocks
  int most_pieces = 3;            // in the stream
};

class DeviceQueue {
 public:
  // Space, meter and clock outlive it. `done` is called as Device::OnDone
  // calls, and may be after the queue's end.
  DeviceQueue(DeviceSpace& space, IoDirection direction,
              const DeviceQueueOptions& options, PathMeter& meter, Clock& clock,
              std::function<void()> done);
  ~DeviceQueue();
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;

  // As Transport's.
  void Begin(const Move& move);
  void Cancel(uint64_t tag);
  void Promote(uint64_t tag, IoClass io_class);
  void Poll(std::vector<Moved>* moved);
  int64_t pending() const;
  absl::Time NextEvent() const;

  // The stream has copies that have not ended.
  bool has_copies() const { return !copies_.empty(); }

 private:
  struct Piece {
    Transfer* work = nullptr;
    IoRequest request;
    absl::Time issued;
    bool quarantined = false;
  };

  Transfer* Find(uint64_t tag) const;
  void TakeEnded(absl::Time now);
  void EndPiece(const absl::Status& status, absl::Time now);
  void BeginPieces(absl::Time now);
  void BeginPiece(Transfer* work, int64_t size_bytes, absl::Time now);
  absl::Status BeginCopy(const IoRequest& request);
  void CheckHealth();
  void CheckExpiries(absl::Time now);
  absl::Time ExpiryOf(const Transfer& work) const;
  void Expire(Transfer* work, absl::Time now);
  void FailPiece(Transfer* work, const absl::Status& error);
  // What of it is not begun never will be.
  void Drop(Transfer* work);
  void Settle(Transfer* work);

  // "cuda:0, stream to the device, offset 0, 4096 bytes".
  std::string Named(const Transfer& work) const;
  absl::Status LateError(const Transfer& work) const;

  DeviceSpace& space_;
  const IoDirection direction_;
  const DeviceQueueOptions options_;
  PathMeter& meter_;
  Clock& clock_;
  const std::function<void()> done_;

  std::map<uint64_t, std::unique_ptr<Transfer>> works_;  // by tag
  int64_t next_order_ = 0;
  ClassSchedule schedule_;  // of what is not begun
  Expiries expiries_;
  std::deque<Piece> copies_;  // of the stream, in its order
  absl::Time last_answer_ = absl::InfinitePast();
  absl::Time looked_ = absl::InfinitePast();
  bool must_look_ = false;  // the device will not call for what it copies
  std::vector<Moved> ended_;
};

}  // namespace terrace
