#include "bench/io/light_device.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/wake_flag.h"
#include "base/check.h"

namespace terrace::bench {
namespace {

constexpr int64_t kBlock = 64 << 10;
constexpr size_t kLine = 64;

class LightDevice final : public IoEngine {
 public:
  LightDevice(int64_t size_bytes, Clock& clock)
      : blocks_(size_bytes / kBlock),
        lines_(static_cast<size_t>(blocks_) * kLine),
        clock_(clock) {
    TERRACE_CHECK(blocks_ > 0 && size_bytes % kBlock == 0);
  }

  absl::StatusOr<int> AddFile(int fd) override {
    TERRACE_CHECK(fd == 0);
    return 0;
  }
  void RegisterArena(absl::Span<std::byte> /*arena*/) override {}

  int Submit(absl::Span<const IoRequest> requests) override {
    pending_.insert(pending_.end(), requests.begin(), requests.end());
    return static_cast<int>(requests.size());
  }

  int Poll(absl::Span<IoResult> results) override {
    const size_t n = std::min(results.size(), pending_.size());
    for (size_t i = 0; i < n; ++i) {
      const IoRequest& request = pending_.front();
      Move(request);
      results[i] = {request.tag, request.size_bytes};
      pending_.pop_front();
    }
    return static_cast<int>(n);
  }

  void Wait(absl::Time deadline) override {
    wake_.Wait(!pending_.empty(), clock_, deadline);
  }
  void Wake() override { wake_.Wake(); }
  absl::Time NextEvent() const override {
    return pending_.empty() ? absl::InfiniteFuture() : clock_.Now();
  }

  EngineInfo info() const override {
    return {"light", absl::StrCat(kLine, " bytes of each ", kBlock)};
  }

 private:
  void Move(const IoRequest& request) {
    for (int64_t at = 0; at < request.size_bytes; at += kBlock) {
      const auto block =
          static_cast<size_t>((request.offset + at) / kBlock % blocks_);
      std::byte* const line = lines_.data() + block * kLine;
      if (request.direction == IoDirection::kRead) {
        std::memcpy(request.data + at, line, kLine);
      } else {
        std::memcpy(line, request.data + at, kLine);
      }
    }
  }

  const int64_t blocks_;
  std::vector<std::byte> lines_;
  Clock& clock_;
  std::deque<IoRequest> pending_;
  WakeFlag wake_;
};

}  // namespace

std::unique_ptr<IoEngine> MakeLightDevice(int64_t size_bytes, Clock& clock) {
  return std::make_unique<LightDevice>(size_bytes, clock);
}

}  // namespace terrace::bench
