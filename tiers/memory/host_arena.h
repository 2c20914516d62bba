// The host tier's memory: one mapping, 2 MiB aligned, populated at once, huge
// pages asked for and verified. Grows at its end, as far as address
// space was reserved for that; never shrinks; unmapped by the destructor unless
// leaked. Thread-compatible. A forked child has no such mapping.
//
// It is anonymous, or of a memory file that another process may map too: one
// that nobody can shrink or enlarge, so that no access to it ever fails there.
// Such a file's addresses for growth, and for what spills over, hold no memory
// until they are touched.
//
// It costs its size in pages, no more: a tail shorter than 2 MiB has ordinary
// pages, which huge_page_share() counts as not huge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "terrace/options.h"
#include "tiers/extent.h"

namespace terrace {

struct HostArenaOptions {
  int64_t size_bytes = 0;    // rounded up to 4 KiB; 0, of one that may grow
  int64_t growth_bytes = 0;  // that Grow may add: addresses, no memory yet
  HugePages huge_pages = HugePages::kPreferred;
  int numa_node = -1;  // all of it there, or refused; -1: see below
  // Else there as far as there is room, which is no error; -1: where the
  // kernel puts it.
  int preferred_node = -1;
  bool shared = false;  // of a memory file
  // Addresses of a shared one behind all that it may grow by, without memory
  // until PopulateRange.
  int64_t spill_bytes = 0;
  // Whether to look at what was had, which takes milliseconds; without it the
  // share is 0, and the node unknown unless one is named.
  bool inspect = true;
};

// Whether pages that must lie on node `required` do after they were pinned,
// `nodes` being where they were found. Unavailable: some left it, as those of
// movable memory do; names the command that mends it.
absl::Status StayedOnNode(int64_t size_bytes, int required,
                          absl::Span<const int> nodes);

class HostArena {
 public:
  // InvalidArgument: no bytes; ResourceExhausted: no memory, or none on the
  // node, or no descriptor for a memory file; Unavailable: no such node, or the
  // pages lie elsewhere, or huge pages required and not had (with what mends
  // it).
  static absl::StatusOr<std::unique_ptr<HostArena>> Create(
      const HostArenaOptions& options);
  // The same of a memory file that an arena of these options had, in a process
  // that has gone: what lies in it is as it was. InvalidArgument: the file has
  // another size, or one that may change.
  static absl::StatusOr<std::unique_ptr<HostArena>> Reopen(
      const HostArenaOptions& options, OwnDescriptor memory_file);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Adds memory at the end of bytes(), of the same kind and populated; rounded
  // up to 4 KiB. After an error nothing has changed. InvalidArgument: no bytes;
  // ResourceExhausted: beyond growth_bytes, or no memory, or none on the node.
  // huge_page_share() and found_node() stay those of the beginning.
  absl::Status Grow(int64_t size_bytes);

  // The addresses of HostArenaOptions::spill_bytes, in whole blocks of 4 KiB,
  // as an extent of what begins with bytes(). One thread may use them while
  // another grows the arena.
  const Extent& spill() const { return spill_; }
  // Makes memory of a range there, or of one that was emptied. One thread may
  // do so while another grows the arena. ResourceExhausted: there is none, or
  // none on the node, and nothing has changed.
  absl::Status PopulateRange(const Extent& range);
  // Addresses again: whoever has mapped the range finds zeros.
  void EmptyRange(const Extent& range);

  absl::Span<std::byte> bytes() const { return bytes_; }
  // Of a shared one, with all that it may grow by, and its spill; else none.
  const OwnDescriptor& memory_file() const { return memory_file_; }
  int64_t memory_file_bytes() const { return memory_file_bytes_; }
  double huge_page_share() const { return huge_page_share_; }  // per smaps
  // The one that was asked for or preferred; -1: none.
  int asked_node() const { return asked_node_; }
  // The one that the pages lie on, all of them where they must, else as far as
  // a sample shows; -1: several, or unknown.
  int found_node() const { return found_node_; }

  // To be asked once a device has pinned them: StayedOnNode, of all pages; OK
  // where no node is required.
  absl::Status CheckPinned() const;

  // Gives the pages of a shared one back, for good: whoever has mapped it finds
  // zeros. Nothing may be under way.
  void Empty() { EmptyMemoryFile(memory_file_); }
  static void EmptyMemoryFile(const OwnDescriptor& file);

  // Never unmaps: transfers may still write into it.
  void Leak() { leaked_ = true; }

 private:
  HostArena() = default;
  // Addresses for all that the options ask for, and nothing there.
  static absl::StatusOr<std::unique_ptr<HostArena>> Reserve(
      const HostArenaOptions& options, int64_t available_bytes);
  absl::Status Build(const HostArenaOptions& options);
  // Makes pages of the reserved addresses.
  absl::Status Commit(absl::Span<std::byte> area);
  absl::Status TakeMemoryFile(OwnDescriptor file);
  // The pages of an area are there already, or come as they are touched.
  absl::Status Open(absl::Span<std::byte> area) const;
  // Addresses of one mapping, however many ranges of them have memory.
  absl::Status MapSpill();
  absl::Span<std::byte> RangeAt(const Extent& range) const;
  // The pages of what could not be committed go back.
  void Uncommit(absl::Span<std::byte> area) const;
  absl::Status BindArea(absl::Span<std::byte> area) const;
  absl::Status VerifyNode(int required);

  absl::Span<std::byte> bytes_;
  void* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
  OwnDescriptor memory_file_;
  int64_t memory_file_bytes_ = 0;
  int64_t growth_bytes_ = 0;  // that are left
  // These stay as they are made: the spill's users need not know of growth.
  std::byte* begin_ = nullptr;
  Extent spill_;
  HugePages huge_pages_ = HugePages::kPreferred;
  double huge_page_share_ = 0;
  int required_node_ = -1;
  int asked_node_ = -1;
  int found_node_ = -1;
  bool leaked_ = false;
};

}  // namespace terrace
