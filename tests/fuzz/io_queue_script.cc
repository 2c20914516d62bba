#include "tests/fuzz/io_queue_script.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "aio/io_paths.h"
#include "tests/aio/scripted_engine.h"
#include "tests/aio/test_files.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

constexpr int64_t kBlock = 4096;
constexpr int64_t kRegion = 6 * kBlock;  // of one transfer at a time
constexpr int kRegions = 4;              // of a path
constexpr int kPaths = 2;
constexpr int64_t kLimit = 6 * kBlock;
constexpr int kErrors[] = {EIO,    EAGAIN, EINTR, ENOSPC,
                           EINVAL, EBADF,  EIO,   ENOMEM};
constexpr int kOfWhichMayHeal = 3;  // the first ones, EIO for reads alone

struct Asked {
  IoTransfer transfer;
  int path = 0;
  absl::Time since;
  std::vector<bool> moved;       // block by block
  std::vector<std::byte> bytes;  // of a write: what is to be stored
  bool is_cancelled = false;
  bool is_quarantined = false;
  std::vector<int> curable;  // errors that may be tried again
  int fatal = 0;             // the first that may not; -1: an end of file
};

class Script {
 public:
  explicit Script(absl::Span<const uint8_t> bytes) : bytes_(bytes) {
    auto engine = std::make_unique<ScriptedEngine>();
    engine_ = engine.get();
    io_ = std::make_unique<IoPaths>(std::move(engine), clock_);
    IoQueueOptions options;
    options.in_flight_bytes = kLimit;
    options.most_in_flight_bytes = kLimit;
    options.piece_bytes = 3 * kBlock;
    options.adapts = Next() % 2 == 0;
    for (int path = 0; path < kPaths; ++path) {
      if (!io_->AddPath(absl::StrCat("path", path), path, options).ok()) {
        Fail("no path");
      }
      media_[path].resize(kRegions * kRegion);
      for (size_t i = 0; i < media_[path].size(); ++i) {
        media_[path][i] = static_cast<std::byte>(i * 7 + i / kBlock + path);
      }
    }
  }

  ScriptResult Run() {
    while (at_ < bytes_.size() && result_.problem.empty()) {
      Step();
      CheckDevice();
    }
    Drain();
    if (!result_.problem.empty()) io_->Abandon();
    return result_;
  }

 private:
  uint8_t Next() { return at_ < bytes_.size() ? bytes_[at_++] : 0; }
  void Fail(const std::string& problem) {
    if (result_.problem.empty()) {
      result_.problem = absl::StrCat("at byte ", at_, ": ", problem);
    }
  }

  void Step() {
    const uint8_t step = Next();
    switch (step % 16) {
      case 0:
      case 1:
      case 2:
      case 3:
        Ask();
        break;
      case 4:
        if (Asked* asked = Pick()) {
          // Only a cancel can have ended it already.
          if (!io_->Cancel(asked->path, asked->transfer.tag) &&
              !asked->is_cancelled) {
            Fail("a pending transfer is not known to Cancel");
          }
          asked->is_cancelled = true;
        }
        break;
      case 5:
        if (Asked* asked = Pick()) {
          io_->Promote(asked->path, asked->transfer.tag,
                       static_cast<IoClass>(Next() % kIoClasses));
        }
        break;
      case 6:
      case 7:
      case 8:
        Answer(Next(), INT64_MAX);
        break;
      case 9:
        Answer(Next(), 1 + Next() * int64_t{97});
        break;
      case 10: {
        const uint8_t which = Next();
        Answer(which, -kErrors[Next() % std::size(kErrors)]);
        break;
      }
      case 11:
        Answer(Next(), 0);
        break;
      case 12:
        clock_.JumpTo(clock_.Now() + absl::Microseconds(1 << (Next() % 24)));
        break;
      case 13:
        engine_->set_room(Next() % 4);
        break;
      case 14:
        ToNextEvent();
        break;
      default:
        engine_->set_room(1 << 20);
        break;
    }
    if (step < 192) Poll();  // else it happens before the next turn
  }

  void Ask() {
    const uint8_t what = Next();
    const uint8_t where = Next();
    const int path = where % kPaths;
    const int region = where / kPaths % kRegions;
    if (busy_[path][region]) return;
    busy_[path][region] = true;
    const uint64_t tag = next_tag_++;
    Asked& asked = asked_[tag];
    asked.path = path;
    IoTransfer& transfer = asked.transfer;
    transfer.direction =
        what % 2 == 0 ? IoDirection::kRead : IoDirection::kWrite;
    transfer.io_class = static_cast<IoClass>(what / 2 % kIoClasses);
    const int64_t first = what / 8 % 3;
    const int64_t blocks = 1 + where / 16 % (6 - first);
    transfer.offset = region * kRegion + first * kBlock;
    transfer.size_bytes = blocks * kBlock;
    transfer.data = memory_[path].data() + transfer.offset;
    transfer.tag = tag;
    constexpr absl::Duration kTimeouts[] = {
        absl::InfiniteDuration(), absl::Milliseconds(5), absl::Seconds(1),
        absl::InfiniteDuration()};
    transfer.timeout = kTimeouts[what / 64];
    asked.since = clock_.Now();
    asked.moved.resize(static_cast<size_t>(blocks));
    const auto seed = static_cast<std::byte>(tag * 31 + 1);
    std::fill_n(transfer.data, transfer.size_bytes, seed);
    if (transfer.direction == IoDirection::kWrite) {
      asked.bytes.assign(transfer.data, transfer.data + transfer.size_bytes);
    }
    ++result_.transfers;
    io_->Enqueue(path, transfer);
  }

  Asked* Pick() {
    if (asked_.empty()) return nullptr;
    auto it = asked_.begin();
    std::advance(it, Next() % asked_.size());
    return &it->second;
  }

  Asked* OwnerOf(const IoRequest& request) {
    for (auto& [tag, asked] : asked_) {
      const IoTransfer& transfer = asked.transfer;
      const int64_t at = request.offset - transfer.offset;
      if (asked.path == request.file && at >= 0 &&
          at + request.size_bytes <= transfer.size_bytes &&
          request.direction == transfer.direction &&
          request.data == transfer.data + at) {
        return &asked;
      }
    }
    return nullptr;
  }

  // The device ends one of its requests: bytes moved, or -errno.
  void Answer(uint8_t which, int64_t result) {
    if (engine_->in_flight().empty()) return;
    const size_t i = which % engine_->in_flight().size();
    const IoRequest request = engine_->in_flight()[i];
    Asked* const asked = OwnerOf(request);
    if (asked == nullptr) return Fail("the device has what nobody asked for");
    result = std::min(result, request.size_bytes);
    const bool is_read = request.direction == IoDirection::kRead;
    if (result > 0) {
      std::byte* const medium = media_[request.file].data() + request.offset;
      std::memcpy(is_read ? request.data : medium,
                  is_read ? medium : request.data, static_cast<size_t>(result));
      const int64_t block = (request.offset - asked->transfer.offset) / kBlock;
      for (int64_t k = 0; k < result / kBlock; ++k) {
        asked->moved[static_cast<size_t>(block + k)] = true;
      }
      // Less than a block is tried again, but not for ever.
      if (result < std::min(kBlock, request.size_bytes)) {
        asked->curable.push_back(is_read ? -1 : EIO);
      }
    } else {
      const int error =
          result < 0 ? static_cast<int>(-result) : (is_read ? -1 : EIO);
      const auto* const end = kErrors + kOfWhichMayHeal;
      const bool curable = result < 0 &&
                           std::find(kErrors, end, error) != end &&
                           (error != EIO || is_read);
      if (curable) {
        asked->curable.push_back(error);
      } else if (asked->fatal == 0) {
        asked->fatal = error;
      }
    }
    engine_->Complete(i, result);
  }

  void ToNextEvent() {
    const absl::Time next = io_->NextEvent();
    if (next > clock_.Now() && next < absl::InfiniteFuture()) {
      clock_.JumpTo(next);
    }
  }

  void Poll() {
    std::vector<Completion> completions;
    io_->Poll(&completions);
    for (const Completion& completion : completions) End(completion);
    CheckDevice();
  }

  void End(const Completion& completion) {
    const auto it = asked_.find(completion.tag);
    if (it == asked_.end()) return Fail("an end of what is not pending");
    Asked& asked = it->second;
    if (asked.path != completion.path) return Fail("an end of another path");
    if (asked.is_quarantined != completion.released) {
      return Fail("released without quarantine, or quarantined twice");
    }
    Judge(asked, completion);
    if (completion.quarantined) {
      asked.is_quarantined = true;
      return;
    }
    busy_[asked.path][asked.transfer.offset / kRegion] = false;
    if (completion.status.ok()) ++result_.good_ends;
    asked_.erase(it);  // from here on the device must not have it
  }

  void Judge(const Asked& asked, const Completion& completion) {
    const absl::Status& status = completion.status;
    if (status.ok()) return JudgeGood(asked);
    if (absl::IsCancelled(status)) {
      if (!asked.is_cancelled) Fail("cancelled by nobody");
      return;
    }
    if (absl::IsDeadlineExceeded(status)) {
      if (clock_.Now() < asked.since + asked.transfer.timeout) {
        Fail("a deadline that has not passed");
      }
      return;
    }
    if (completion.quarantined) return Fail("quarantined without a deadline");
    std::vector<int> given = asked.curable;
    if (asked.fatal != 0) given.push_back(asked.fatal);
    if (asked.fatal != 0 && asked.curable.empty()) given = {asked.fatal};
    const bool is_known =
        std::any_of(given.begin(), given.end(), [&](int error) {
          const std::string name =
              error == -1 ? "unexpected end of file" : DescribeErrno(error);
          return absl::StrContains(status.message(), name);
        });
    if (!is_known) {
      Fail(absl::StrCat("an error that nobody gave: ", status.ToString()));
    }
  }

  void JudgeGood(const Asked& asked) {
    if (asked.fatal != 0 && !asked.is_quarantined) {
      return Fail("a good end after an error that cannot be healed");
    }
    if (std::find(asked.moved.begin(), asked.moved.end(), false) !=
        asked.moved.end()) {
      return Fail("a good end without all bytes");
    }
    const IoTransfer& transfer = asked.transfer;
    const std::byte* const medium = media_[asked.path].data() + transfer.offset;
    const bool is_read = transfer.direction == IoDirection::kRead;
    const std::byte* const truth = is_read ? transfer.data : asked.bytes.data();
    if (std::memcmp(medium, truth, static_cast<size_t>(transfer.size_bytes)) !=
        0) {
      Fail("a good end with wrong bytes");
    }
  }

  // What the device has is of pending transfers, once, and within the limit.
  void CheckDevice() {
    int64_t in_flight[kPaths] = {};
    const std::vector<IoRequest>& all = engine_->in_flight();
    for (size_t i = 0; i < all.size(); ++i) {
      const Asked* const asked = OwnerOf(all[i]);
      if (asked == nullptr) return Fail("the device has what nobody asked for");
      if (all[i].size_bytes <= 0 || all[i].size_bytes % kBlock != 0) {
        return Fail("a request that is not of whole blocks");
      }
      if (!asked->is_quarantined) in_flight[all[i].file] += all[i].size_bytes;
      for (size_t j = 0; j < i; ++j) {
        if (all[i].file == all[j].file &&
            all[i].offset < all[j].offset + all[j].size_bytes &&
            all[j].offset < all[i].offset + all[i].size_bytes) {
          return Fail("the device has the same bytes twice");
        }
      }
    }
    for (const int64_t bytes : in_flight) {
      if (bytes > kLimit) Fail("more in flight than the limit");
    }
  }

  // Everything ends, with no help but the device's and time's.
  void Drain() {
    engine_->set_room(1 << 20);
    for (int i = 0; i < 10'000 && result_.problem.empty(); ++i) {
      Poll();
      CheckDevice();
      if (io_->pending() == 0) break;
      const absl::Time next = io_->NextEvent();
      if (!engine_->in_flight().empty()) {
        Answer(0, INT64_MAX);
      } else if (next > clock_.Now() && next < absl::InfiniteFuture()) {
        clock_.JumpTo(next);
      } else if (next == absl::InfiniteFuture()) {
        Fail("transfers are pending and nothing will ever happen");
      }
    }
    if (io_->pending() > 0) Fail("it does not come to an end");
    if (!asked_.empty()) Fail("transfers that never ended");
    for (int path = 0; path < kPaths; ++path) {
      const IoPathStats stats = io_->stats(path);
      if (stats.in_flight_bytes != 0 || stats.quarantined_bytes != 0) {
        Fail("bytes are counted in flight at the end");
      }
    }
  }

  const absl::Span<const uint8_t> bytes_;
  size_t at_ = 0;
  ScriptResult result_;

  VirtualClock clock_;
  ScriptedEngine* engine_ = nullptr;
  std::vector<std::byte> media_[kPaths];
  AlignedBuffer memory_[kPaths] = {AlignedBuffer(kRegions * kRegion),
                                   AlignedBuffer(kRegions* kRegion)};
  std::map<uint64_t, Asked> asked_;  // pending, by tag
  bool busy_[kPaths][kRegions] = {};
  uint64_t next_tag_ = 1;
  std::unique_ptr<IoPaths> io_;  // first to go: buffers outlive it
};

}  // namespace

ScriptResult RunIoQueueScript(absl::Span<const uint8_t> script) {
  return Script(script).Run();
}

}  // namespace terrace
