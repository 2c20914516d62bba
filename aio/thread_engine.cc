// A pread/pwrite pool for kernels and containers that give no ring, of threads
// for each file. They also see buffered transfers out of the page cache; which
// write of a file is told that the device lost something:
// base/page_cache.h.
#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "aio/file_threads.h"
#include "aio/make_engine.h"

namespace terrace {
namespace {

class ThreadEngine final : public IoEngine {
 public:
  // `first`: the threads of the first file, started.
  ThreadEngine(std::unique_ptr<ThreadResults> results,
               std::unique_ptr<FileThreads> first, std::string reason)
      : reason_(std::move(reason)),
        results_(std::move(results)),
        next_(std::move(first)) {}

  absl::StatusOr<int> AddFile(int fd) override {
    if (next_ == nullptr) next_ = std::make_unique<FileThreads>(*results_);
    if (!files_.empty() && next_->Start() == 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "no thread for I/O can be started beside ",
          files_.size() * FileThreads::kThreads, " of other paths"));
    }
    next_->Open(fd);
    files_.push_back(std::move(next_));
    return static_cast<int>(files_.size()) - 1;
  }
  void RegisterArena(absl::Span<std::byte> /*arena*/) override {}

  int Submit(absl::Span<const IoRequest> requests) override {
    int taken = 0;
    for (const IoRequest &request : requests) {
      const bool is_known =
          request.file >= 0 && request.file < static_cast<int>(files_.size());
      if (!is_known) {
        results_->Add({request.tag, -EBADF});
      } else if (!files_[request.file]->Push(request)) {
        break;
      }
      ++taken;
    }
    return taken;
  }

  bool Withdraw(uint64_t tag) override {
    return std::any_of(files_.begin(), files_.end(),
                       [tag](const auto &file) { return file->Withdraw(tag); });
  }

  int Poll(absl::Span<IoResult> results) override {
    return results_->Take(results);
  }
  void Wait(absl::Time deadline) override { results_->Wait(deadline); }
  void Wake() override { results_->Wake(); }

  EngineInfo info() const override {
    return {"threads",
            absl::StrCat(FileThreads::kThreads, " threads a path, ", reason_)};
  }

 private:
  const std::string reason_;
  const std::unique_ptr<ThreadResults> results_;
  std::unique_ptr<FileThreads> next_;  // null: the next file's are to be made
  std::vector<std::unique_ptr<FileThreads>> files_;
};

}  // namespace

std::unique_ptr<IoEngine> MakeThreadEngine(const std::string &reason) {
  auto results = std::make_unique<ThreadResults>();
  auto first = std::make_unique<FileThreads>(*results);
  if (first->Start() == 0) return nullptr;
  return std::make_unique<ThreadEngine>(std::move(results), std::move(first),
                                        reason);
}

}  // namespace terrace
