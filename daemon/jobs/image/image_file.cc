#include "daemon/jobs/image/image_file.h"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/memory_file.h"
#include "terrace/version.h"

namespace terrace {
namespace {

// False: it has no room, with the zero that ends it.
template <size_t kBytes>
bool Put(absl::string_view text, std::array<char, kBytes>* place) {
  if (text.size() >= kBytes || absl::StrContains(text, '\0')) return false;
  place->fill('\0');
  std::copy(text.begin(), text.end(), place->begin());
  return true;
}

absl::Status NotHad(const char* what, int error) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "a job's image cannot be ", what, ": ", std::strerror(error)));
}

template <size_t kBytes>
std::string Text(const std::array<char, kBytes>& place) {
  return std::string(place.data(), strnlen(place.data(), kBytes));
}

}  // namespace

absl::StatusOr<ImageFile> ImageFile::Map(OwnDescriptor file) {
  std::byte* const mapped = MapMemoryFile(file, kImageBytes);
  if (mapped == nullptr) {
    return NotHad("mapped", errno);
  }
  return ImageFile(std::move(file),
                   absl::MakeSpan(mapped, static_cast<size_t>(kImageBytes)));
}

absl::StatusOr<ImageFile> ImageFile::Make(const ImageFacts& facts) {
  OwnDescriptor made = MakeMemoryFile("terrace-image", kImageBytes);
  if (!made.ok()) return NotHad("made", errno);
  TERRACE_ASSIGN_OR_RETURN(ImageFile file, Map(std::move(made)));
  auto& header = *new (file.bytes_.data()) ImageHeader();
  header.uid = facts.job.uid;
  header.pid = facts.process;
  header.start_time = facts.start_time;
  header.memory_bytes = facts.asked.memory_bytes;
  header.growth_bytes = facts.asked.growth_bytes;
  header.eviction = static_cast<uint64_t>(facts.asked.eviction);
  header.prefetch = facts.asked.prefetch ? 1 : 0;
  header.patience_ms = facts.asked.patience_ms;
  header.spill_bytes = facts.spill_bytes;
  header.used_bytes = facts.asked.memory_bytes;
  bool has_room = facts.disks.size() <= ImageTiers::kMostDisks &&
                  Put(kVersion, &header.version) &&
                  Put(facts.job.job, &header.job);
  for (const ImageFacts::Disk& each : facts.disks) {
    if (!has_room) break;
    ImageDisk& disk = header.tiers.disk[header.tiers.disks++];
    has_room = Put(each.place, &disk.place) && Put(each.file.name, &disk.name);
    disk.alignment = each.file.alignment;
    disk.seal_id = each.file.seal_id;
    disk.direct_io = each.file.direct_io ? 1 : 0;
  }
  has_room = has_room && facts.mapped.size() <= ImageTiers::kMostMedia;
  for (const ImageFacts::Mapped& each : facts.mapped) {
    if (!has_room) break;
    ImageMedium& medium = header.tiers.medium[header.tiers.media++];
    has_room =
        Put(each.tier, &medium.tier) && Put(each.medium.name, &medium.name);
    medium.most_bytes = each.most_bytes;
    medium.seal_id = each.medium.seal_id;
  }
  if (!has_room) {
    return absl::InvalidArgumentError(
        "a job's image has no room for the names of its tiers");
  }
  header.magic = kImageMagic;
  return file;
}

absl::StatusOr<ImageFile> ImageFile::Reopen(OwnDescriptor file) {
  if (!IsMemoryFile(file, kImageBytes)) {
    return absl::InvalidArgumentError("a job's image has another size");
  }
  TERRACE_ASSIGN_OR_RETURN(ImageFile image, Map(std::move(file)));
  const ImageHeader& header = image.header();
  if (header.magic != kImageMagic) {
    return absl::InvalidArgumentError("no job's image, or an unfinished one");
  }
  if (Text(header.version) != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job's image is of version ", absl::CEscape(Text(header.version)),
        ", and this is ", kVersion));
  }
  const bool is_whole = header.tiers.disks <= ImageTiers::kMostDisks &&
                        header.tiers.media <= ImageTiers::kMostMedia &&
                        header.entries <= kImageEntries &&
                        header.is_incomplete == 0;
  if (is_whole) return image;
  return absl::DataLossError(
      absl::StrCat("a job's image had no room for more than ", kImageEntries,
                   " tensors, pins and queues"));
}

ImageFile::ImageFile(ImageFile&& other) noexcept
    : file_(std::move(other.file_)), bytes_(std::exchange(other.bytes_, {})) {}

ImageFile::~ImageFile() {
  // A child may have something else at these addresses.
  if (bytes_.empty() || !file_.process().IsCurrent()) return;
  munmap(bytes_.data(), bytes_.size());
}

ImageFacts ImageFile::facts() const {
  const ImageHeader& header = this->header();
  ImageFacts facts;
  facts.job = {static_cast<uid_t>(header.uid), Text(header.job)};
  facts.process = header.pid;
  facts.start_time = header.start_time;
  facts.asked.version = kVersion;
  facts.asked.job = facts.job.job;
  facts.asked.memory_bytes = header.memory_bytes;
  facts.asked.growth_bytes = header.growth_bytes;
  facts.asked.eviction = static_cast<EvictionKind>(header.eviction);
  facts.asked.prefetch = header.prefetch != 0;
  facts.asked.patience_ms = header.patience_ms;
  facts.spill_bytes = header.spill_bytes;
  for (size_t i = 0; i < header.tiers.disks; ++i) {
    const ImageDisk& disk = header.tiers.disk[i];
    ImageFacts::Disk& each = facts.disks.emplace_back();
    each.place = Text(disk.place);
    each.file.name = Text(disk.name);
    each.file.alignment = disk.alignment;
    each.file.seal_id = disk.seal_id;
    each.file.direct_io = disk.direct_io != 0;
  }
  for (size_t i = 0; i < header.tiers.media; ++i) {
    const ImageMedium& medium = header.tiers.medium[i];
    ImageFacts::Mapped& each = facts.mapped.emplace_back();
    each.tier = Text(medium.tier);
    each.most_bytes = medium.most_bytes;
    each.medium.name = Text(medium.name);
    each.medium.seal_id = medium.seal_id;
  }
  return facts;
}

bool ImageFile::Accepts(const JobToken& token) const {
  const auto& tokens = header().tokens;
  return token != JobToken{} && (token == tokens[0] || token == tokens[1]);
}

// That which was accepted is whole in one of the two at any moment.
JobToken ImageFile::MakeToken(const JobToken& accepted) {
  JobToken made{};
  if (getrandom(made.data(), made.size(), 0) !=
      static_cast<ssize_t>(made.size())) {
    return JobToken{};
  }
  header().tokens[0] = accepted == JobToken{} ? made : accepted;
  std::atomic_signal_fence(std::memory_order_seq_cst);
  header().tokens[1] = made;
  return made;
}

void ImageFile::ForgetOldToken() { header().tokens[0] = header().tokens[1]; }

}  // namespace terrace
