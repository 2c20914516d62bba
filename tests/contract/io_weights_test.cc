// Options::io_weights reach the path's queue: kinds that wait side by side move
// bytes in that ratio. Counted, on a memory path of known rates.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

constexpr int64_t kTensorBytes = 256 << 10;
constexpr int kTensors = 160;  // read, and as many written
const int64_t kWindowBytes = WindowBytes(kTensorBytes, kTensors);
constexpr int64_t kBytes = kTensors * kTensorBytes;

enum class Readers { kDemand, kPrefetch };

struct Moved {
  int64_t read = 0;
  int64_t written = 0;
  Moved operator-(const Moved& other) const {
    return {read - other.read, written - other.written};
  }
};

class IoWeightsTest : public testing::Test {
 protected:
  static Moved MovedBy(const Runtime& runtime) {
    const Stats stats = runtime.GetStats();
    return {stats.bytes_read(), stats.bytes_written()};
  }
  static Time Soon() { return absl::Now() + absl::Seconds(60); }

  static std::vector<TensorId> Register(Runtime& runtime,
                                        const std::string& name) {
    std::vector<TensorId> tensors;
    for (int i = 0; i < kTensors; ++i) {
      const auto tensor = runtime.Register(
          {.name = name + std::to_string(i), .size_bytes = kTensorBytes});
      EXPECT_TRUE(tensor.ok()) << tensor.status();
      tensors.push_back(tensor.value_or(TensorId()));
    }
    return tensors;
  }

  // All of them pinned for writing, in a window of their own.
  static std::vector<Pin> PinAll(RequestQueue& queue,
                                 const std::vector<TensorId>& tensors) {
    std::vector<Pin> pins;
    for (const TensorId tensor : tensors) {
      EXPECT_TRUE(queue.Push({{tensor, Access::kOverwrite}}, 0, Soon()).ok());
      auto ready = queue.Next(Soon());
      EXPECT_TRUE(ready.ok() && ready->pins.ok());
      pins.push_back(std::move(ready->pins->front()));
    }
    return pins;
  }
  static std::unique_ptr<RequestQueue> Open(Runtime& runtime) {
    auto queue = runtime.OpenQueue(kTensorBytes, kTensors, Soon());
    EXPECT_TRUE(queue.ok()) << queue.status();
    return *std::move(queue);
  }

  // Reads over bytes written back, of many that all wait at once. Nullopt:
  // no look was taken before one of them was nearly through.
  static std::optional<double> SharesBeside(Readers kind,
                                            const IoWeights& weights) {
    Options options;
    options.memory_paths = 1;
    options.memory_path_bytes = 4 * kBytes;
    options.host_budget_bytes = 2 * kWindowBytes + (64 << 10);
    options.huge_pages = HugePages::kOff;
    options.threads = 1;
    options.pace = {64 << 20, 64 << 20};  // most of a second for each alone
    options.io_weights = weights;
    auto created = Runtime::Create(options);
    EXPECT_TRUE(created.ok()) << created.status();
    Runtime& runtime = **created;
    const auto to_read = Register(runtime, "read ");
    const auto to_write = Register(runtime, "written ");
    PinAll(*Open(runtime), to_read).clear();
    auto writers = Open(runtime);
    std::vector<Pin> written = PinAll(*writers, to_write);
    // It opens when all that there is to read has been written.
    auto readers = Open(runtime);
    if (kind == Readers::kPrefetch) {
      readers.reset();  // its room is for what is prefetched
      const Time closed = Soon();
      while (runtime.GetStats().window_bytes > kWindowBytes &&
             absl::Now() < closed) {
      }
      EXPECT_LE(runtime.GetStats().window_bytes, kWindowBytes);
    }
    const Moved start = MovedBy(runtime);
    EXPECT_EQ(start.read, 0);
    written.clear();
    if (kind == Readers::kPrefetch) {
      runtime.Prefetch(to_read);
    } else {
      for (const TensorId tensor : to_read) {
        EXPECT_TRUE(readers->Push({{tensor, Access::kRead}}, 0, Soon()).ok());
      }
    }
    // From when the first window's contents, of the kind that came first, are
    // gone.
    const Time end = Soon();
    Moved from;
    do {
      from = MovedBy(runtime) - start;
    } while (from.read + from.written < kBytes / 3 && absl::Now() < end);
    Moved to = from;
    while (to.read < kBytes * 2 / 3 && to.written < kBytes * 2 / 3 &&
           absl::Now() < end) {
      to = MovedBy(runtime) - start;
    }
    EXPECT_LT(absl::Now(), end)
        << to.read << " read, " << to.written << " bytes written of " << kBytes;
    if (to.read > kBytes * 9 / 10 || to.written > kBytes * 9 / 10 ||
        from.read + from.written > kBytes / 2) {
      return std::nullopt;
    }
    const Moved both = to - from;
    return static_cast<double>(both.read) /
           static_cast<double>(std::max<int64_t>(both.written, 1));
  }
  static double Shares(Readers kind, const IoWeights& weights) {
    for (int attempt = 0; attempt < 10; ++attempt) {
      const auto shares = SharesBeside(kind, weights);
      if (shares.has_value()) return *shares;
    }
    ADD_FAILURE() << "nobody looked in time, ten times";
    return 0;
  }
};

TEST_F(IoWeightsTest, DemandAndWriteBackShareAsAskedFor) {
  EXPECT_GT(Shares(Readers::kDemand, {.demand = 12, .write_back = 1}), 4);
  EXPECT_LT(Shares(Readers::kDemand, {.demand = 1, .write_back = 12}), 0.25);
}

TEST_F(IoWeightsTest, PrefetchAndWriteBackShareAsAskedFor) {
  EXPECT_GT(Shares(Readers::kPrefetch, {.prefetch = 12, .write_back = 1}), 4);
  EXPECT_LT(Shares(Readers::kPrefetch, {.prefetch = 1, .write_back = 12}),
            0.25);
}

}  // namespace
}  // namespace terrace
