// A ring's requests in flight, each in a place whose number is what the kernel
// knows it by.
//
// Those that go through the page cache have moved when their result is here,
// and end when what they wrote is on the device and its pages are dropped:
// these requests follow in the same place, which stays in flight meanwhile. An
// error of the device ends a write of that file, but not always the one whose
// bytes it lost: base/page_cache.h. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "aio/engine.h"
#include "aio/uring/uring_files.h"

struct io_uring;

namespace terrace {

class UringRequests {
 public:
  // Its place. The file is the request's.
  uint64_t Add(const IoRequest& request, const UringFiles::File& file);

  // What has become of the request there; empty: it goes on, with one that is
  // in the ring's submission queue now.
  std::optional<IoResult> OnResult(io_uring* ring, uint64_t place, int result);

  // It ends with that errno, whatever the kernel would have answered.
  IoResult Fail(uint64_t place, int error);
  void FailAll(int error, std::deque<IoResult>* ended);

  int in_flight() const { return in_flight_; }

 private:
  enum class Step : uint8_t { kFree, kMove, kWriteOut, kDrop };
  struct Place {
    uint64_t tag = 0;
    UringFiles::File file;
    IoDirection direction = IoDirection::kRead;
    int64_t offset = 0;
    Step step = Step::kFree;
    int moved_bytes = 0;
  };

  IoResult End(uint64_t place, int64_t result);

  std::vector<Place> places_;
  std::vector<uint64_t> free_;
  int in_flight_ = 0;
};

}  // namespace terrace
