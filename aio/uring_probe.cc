#include "aio/uring_probe.h"

#include <liburing.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "aio/uring/uring_ring.h"
#include "aio/uring/uring_trial.h"

namespace terrace {
namespace {

constexpr unsigned kEntries = 4;
constexpr int kFiles = 4;
// Registration is tried with these, the largest first.
constexpr int64_t kRegisterSizes[] = {64 << 20, 16 << 20, 6 << 20,
                                      1 << 20,  64 << 10, 4096};

struct Named {
  unsigned value;
  const char* name;
};

// Flags that need another one are asked for with it.
constexpr Named kSetupFlags[] = {
    {IORING_SETUP_CQSIZE, "CQSIZE"},
    {IORING_SETUP_R_DISABLED, "R_DISABLED"},
    {IORING_SETUP_SUBMIT_ALL, "SUBMIT_ALL"},
    {IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN"},
    {IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER"},
    {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"},
};
constexpr Named kFeatures[] = {
    {IORING_FEAT_SINGLE_MMAP, "SINGLE_MMAP"},
    {IORING_FEAT_NODROP, "NODROP"},
    {IORING_FEAT_SUBMIT_STABLE, "SUBMIT_STABLE"},
    {IORING_FEAT_FAST_POLL, "FAST_POLL"},
    {IORING_FEAT_EXT_ARG, "EXT_ARG"},
    {IORING_FEAT_NATIVE_WORKERS, "NATIVE_WORKERS"},
    {IORING_FEAT_RSRC_TAGS, "RSRC_TAGS"},
};
constexpr Named kOperations[] = {
    {IORING_OP_READ, "READ"},
    {IORING_OP_WRITE, "WRITE"},
    {IORING_OP_READ_FIXED, "READ_FIXED"},
    {IORING_OP_WRITE_FIXED, "WRITE_FIXED"},
    {IORING_OP_FSYNC, "FSYNC"},
    {IORING_OP_POLL_ADD, "POLL_ADD"},
};

class Ring {
 public:
  explicit Ring(unsigned flags) {
    params_.flags = flags;
    params_.cq_entries = 2 * kEntries;
    error_ = own_.Open(kEntries, &ring_, &params_);
  }
  ~Ring() {
    if (error_ == 0) own_.Exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  int error() const { return error_; }
  unsigned features() const { return params_.features; }
  io_uring* get() { return &ring_; }

 private:
  UringRing own_;
  io_uring ring_ = {};
  io_uring_params params_ = {};
  int error_ = 0;
};

void AskOperations(Ring& ring, UringReport* report) {
  io_uring_probe* const probe = io_uring_get_probe_ring(ring.get());
  for (const Named& operation : kOperations) {
    if (probe == nullptr ||
        !io_uring_opcode_supported(probe, static_cast<int>(operation.value))) {
      report->missing_operations.emplace_back(operation.name);
    }
  }
  io_uring_free_probe(probe);
}

void TryBuffers(Ring& ring, UringReport* report) {
  const int64_t largest = kRegisterSizes[0];
  void* const memory =
      mmap(nullptr, static_cast<size_t>(largest), PROT_READ | PROT_WRITE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    report->register_error = DescribeErrno(errno);
    return;
  }
  report->registered_bytes_tried = largest;
  for (const int64_t size : kRegisterSizes) {
    const iovec slot = {memory, static_cast<size_t>(size)};
    const int error = -io_uring_register_buffers(ring.get(), &slot, 1);
    if (error == 0) {
      io_uring_unregister_buffers(ring.get());
      report->registered_bytes = size;
      break;
    }
    report->register_error = DescribeErrno(error);
  }
  munmap(memory, static_cast<size_t>(largest));
}

}  // namespace

UringReport ProbeUring() {
  UringReport report;
  Ring plain(0);
  report.available = plain.error() == 0;
  if (!report.available) {
    report.error = DescribeErrno(plain.error());
    return report;
  }
  for (const Named& flag : kSetupFlags) {
    if (Ring(flag.value).error() == 0) {
      report.setup_flags.emplace_back(flag.name);
    }
  }
  for (const Named& feature : kFeatures) {
    if ((plain.features() & feature.value) != 0) {
      report.features.emplace_back(feature.name);
    }
  }
  AskOperations(plain, &report);
  report.registers_files =
      io_uring_register_files_sparse(plain.get(), kFiles) == 0;
  TryBuffers(plain, &report);
  return report;
}

absl::StatusOr<std::string> TryPin(absl::Span<std::byte> bytes) {
  Ring ring(0);
  if (ring.error() != 0) {
    return absl::UnavailableError(
        absl::StrCat("io_uring is refused with ", DescribeErrno(ring.error()),
                     ": nothing was asked to pin ", bytes.size(), " bytes"));
  }
  const iovec slot = {bytes.data(), bytes.size()};
  const int error = -io_uring_register_buffers(ring.get(), &slot, 1);
  if (error == EPERM || error == EACCES || error == ENOSYS) {
    return RingRefusal("io_uring_register(IORING_REGISTER_BUFFERS)", error);
  }
  if (error != 0) return DescribeErrno(error);
  io_uring_unregister_buffers(ring.get());
  return std::string();
}

}  // namespace terrace
