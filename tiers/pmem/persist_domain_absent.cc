// PersistDomain in a build without libpmem2.
#include "tiers/pmem/persist_domain.h"

namespace terrace {
namespace {

absl::Status Absent() {
  return absl::UnimplementedError(
      "persistent memory: this build of Terrace has no libpmem2; install "
      "libpmem2-dev (scripts/bootstrap does) and build with TERRACE_PMEM=ON");
}

}  // namespace

struct PersistDomain::Mapping {};

absl::Status PersistDomain::CheckAvailable() { return Absent(); }

absl::StatusOr<std::unique_ptr<PersistDomain>> PersistDomain::Map(
    int, const std::string&, int64_t, Media) {
  return Absent();
}

absl::StatusOr<PersistDomain::Shape> PersistDomain::ShapeOf(
    int, const std::string&) {
  return Absent();
}

absl::StatusOr<std::vector<Extent>> PersistDomain::BadRanges(
    int, const std::string&) {
  return Absent();
}

absl::StatusOr<int64_t> PersistDomain::UnsafeShutdowns(int,
                                                       const std::string&) {
  return Absent();
}

PersistDomain::~PersistDomain() = default;

// There is no object to call these on.
absl::Status PersistDomain::Copy(int64_t, absl::Span<const std::byte>) {
  return Absent();
}
absl::Status PersistDomain::Persist(int64_t, int64_t) { return Absent(); }

}  // namespace terrace
