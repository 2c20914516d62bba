#include "bench/io/libaio_loop.h"

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "base/check.h"

namespace terrace::bench {
namespace {

constexpr int kMaxDepth = 64;

absl::Status Failure(const char* call, int error) {
  return absl::UnavailableError(
      absl::StrCat(call, " failed: ", DescribeErrno(error)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LibaioLoop>> LibaioLoop::Create(
    const std::vector<int>& fds) {
  auto loop = std::unique_ptr<LibaioLoop>(new LibaioLoop);
  loop->fds_ = fds;
  aio_context_t context = 0;
  if (syscall(SYS_io_setup, kMaxDepth, &context) != 0) {
    return Failure("io_setup", errno);
  }
  loop->context_ = context;
  return loop;
}

LibaioLoop::~LibaioLoop() {
  if (context_ != 0) syscall(SYS_io_destroy, context_);
}

absl::Status LibaioLoop::Run(int depth,
                             const std::function<bool(IoRequest*)>& next) {
  TERRACE_CHECK(depth > 0 && depth <= kMaxDepth);
  iocb blocks[kMaxDepth] = {};
  std::vector<iocb*> free;
  for (int i = 0; i < depth; ++i) free.push_back(&blocks[i]);
  std::vector<iocb*> ready;
  int in_flight = 0;
  bool has_more = true;
  while (true) {
    ready.clear();
    IoRequest request;
    while (has_more && !free.empty()) {
      has_more = next(&request);
      if (!has_more) break;
      iocb* const block = free.back();
      free.pop_back();
      const bool is_read = request.direction == IoDirection::kRead;
      block->aio_lio_opcode = is_read ? IOCB_CMD_PREAD : IOCB_CMD_PWRITE;
      block->aio_fildes = static_cast<uint32_t>(fds_[request.file]);
      block->aio_buf = reinterpret_cast<uint64_t>(request.data);
      block->aio_nbytes = static_cast<uint64_t>(request.size_bytes);
      block->aio_offset = request.offset;
      ready.push_back(block);
    }
    for (size_t given = 0; given < ready.size();) {
      const auto taken = syscall(SYS_io_submit, context_, ready.size() - given,
                                 ready.data() + given);
      if (taken < 0) return Failure("io_submit", errno);
      given += static_cast<size_t>(taken);
      in_flight += static_cast<int>(taken);
    }
    if (in_flight == 0) return absl::OkStatus();
    io_event events[kMaxDepth];
    const auto got =
        syscall(SYS_io_getevents, context_, 1, depth, events, nullptr);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Failure("io_getevents", errno);
    for (int i = 0; i < got; ++i) {
      auto* const block = reinterpret_cast<iocb*>(events[i].obj);
      if (events[i].res != static_cast<int64_t>(block->aio_nbytes)) {
        return absl::UnavailableError(absl::StrCat(
            "libaio moved ", events[i].res, " of ", block->aio_nbytes));
      }
      free.push_back(block);
      --in_flight;
    }
  }
}

}  // namespace terrace::bench
