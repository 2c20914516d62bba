// A job that a benchmark runs in a daemon: processes, each a connection with a
// runtime and a thread of its own, that read their tensors from the disk again
// and again.
//
// Each object belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "terrace/runtime.h"

namespace terrace::bench {

struct LoadOptions {
  std::string job;
  int64_t tensor_bytes = 1 << 20;
  int tensors = 32;
  int slots = 8;  // that are asked for at a time
  // Before it asks for the next one; what it waited for each is kept then.
  absl::Duration pause = absl::ZeroDuration();
};

class LoadProcess {
 public:
  // Its tensors are on the disk when this returns.
  static absl::StatusOr<std::unique_ptr<LoadProcess>> Connect(
      const std::string& address, const LoadOptions& options);
  // Stops it.
  ~LoadProcess();

  void Begin();
  absl::Status Stop();

  // Read from the disk up to now.
  int64_t BytesRead() const { return runtime_->GetStats().bytes_read(); }
  // How long each of its requests took, in seconds; once it was stopped.
  const std::vector<double>& waits() const { return waits_; }

 private:
  LoadProcess(LoadOptions options, std::unique_ptr<Runtime> runtime)
      : options_(std::move(options)), runtime_(std::move(runtime)) {}

  absl::Status Write();
  absl::Status ReadOn();

  const LoadOptions options_;
  const std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<RequestQueue> queue_;
  std::vector<TensorId> tensors_;
  std::atomic<bool> ends_ = false;
  std::vector<double> waits_;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace terrace::bench
