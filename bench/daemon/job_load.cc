#include "bench/daemon/job_load.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "bench/harness.h"

namespace terrace::bench {
namespace {

absl::Time Soon() { return absl::Now() + absl::Minutes(1); }

}  // namespace

absl::StatusOr<std::unique_ptr<LoadProcess>> LoadProcess::Connect(
    const std::string& address, const LoadOptions& options) {
  Options asked;
  asked.host_budget_bytes = WindowBytes(options.tensor_bytes, options.slots);
  asked.job = options.job;
  asked.threads = 1;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> runtime,
                           Runtime::Connect(address, asked));
  std::unique_ptr<LoadProcess> process(
      new LoadProcess(options, std::move(runtime)));
  TERRACE_RETURN_IF_ERROR(process->Write());
  return process;
}

absl::Status LoadProcess::Write() {
  TERRACE_ASSIGN_OR_RETURN(queue_, runtime_->OpenQueue(options_.tensor_bytes,
                                                       options_.slots, Soon()));
  for (int i = 0; i < options_.tensors; ++i) {
    TERRACE_ASSIGN_OR_RETURN(
        const TensorId tensor,
        runtime_->Register({.name = absl::StrCat("tensor ", i),
                            .size_bytes = options_.tensor_bytes}));
    tensors_.push_back(tensor);
    const Want want{tensor, Access::kOverwrite};
    TERRACE_RETURN_IF_ERROR(queue_->Push({&want, 1}, 0, Soon()));
    TERRACE_ASSIGN_OR_RETURN(const Ready ready, queue_->Next(Soon()));
    TERRACE_RETURN_IF_ERROR(ready.pins.status());
  }
  return absl::OkStatus();
}

void LoadProcess::Begin() {
  thread_ = std::thread([this] { status_ = ReadOn(); });
}

absl::Status LoadProcess::ReadOn() {
  size_t next = 0;
  const auto push = [&] {
    const Want want{tensors_[next++ % tensors_.size()], Access::kRead};
    return queue_->Push({&want, 1}, 0, Soon());
  };
  for (int i = 1; i < options_.slots; ++i) TERRACE_RETURN_IF_ERROR(push());
  while (!ends_) {
    const double start = Seconds();
    TERRACE_RETURN_IF_ERROR(push());
    TERRACE_ASSIGN_OR_RETURN(const Ready ready, queue_->Next(Soon()));
    TERRACE_RETURN_IF_ERROR(ready.pins.status());
    if (options_.pause == absl::ZeroDuration()) continue;
    waits_.push_back(Seconds() - start);
    absl::SleepFor(options_.pause);
  }
  return absl::OkStatus();
}

absl::Status LoadProcess::Stop() {
  ends_ = true;
  if (thread_.joinable()) thread_.join();
  return status_;
}

LoadProcess::~LoadProcess() { Stop().IgnoreError(); }

}  // namespace terrace::bench
