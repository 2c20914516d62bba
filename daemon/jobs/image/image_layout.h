// How a job's image lies in its memory file: a header, and then entries of one
// size, each of a tensor, a further part of a tensor's name, a pin, a queue or
// a range that is lent.
// Who reads it finds what was written before the writer's process ended,
// wherever that was: an entry counts from the store of its kind on, and what of
// a tensor changes lies there twice, of which one word says which is meant.
//
// Plain bytes, of this build on this machine.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "daemon/wire/job_messages.h"

namespace terrace {

inline constexpr uint64_t kImageMagic = 0x32656761496d7254;  // "TrImage2"

// A disk's file, as KeptFile has it.
struct ImageDisk {
  std::array<char, 1024> place;  // of the configuration
  std::array<char, 120> name;
  int64_t alignment = 0;
  uint64_t seal_id = 0;
  uint64_t direct_io = 0;
};

// Far or persistent memory, as KeptMedium has it.
struct ImageMedium {
  std::array<char, 1024> tier;  // its name, of the configuration
  std::array<char, 120> name;
  int64_t most_bytes = 0;  // addresses
  uint64_t seal_id = 0;
};

// What is below memory.
struct ImageTiers {
  static constexpr size_t kMostDisks = 16;
  static constexpr size_t kMostMedia = 8;

  uint64_t disks = 0;
  std::array<ImageDisk, kMostDisks> disk;
  uint64_t media = 0;
  std::array<ImageMedium, kMostMedia> medium;
};

// What was given never comes again.
struct NextNumbers {
  std::atomic<int64_t> tensor = 0;
  std::atomic<int64_t> queue = 0;
  std::atomic<uint64_t> token = 1;
};

struct ImageHeader {
  uint64_t magic = 0;
  std::array<char, 32> version;
  // Whose it is.
  uint64_t uid = 0;
  int64_t pid = 0;
  uint64_t start_time = 0;
  std::array<char, 256> job;
  // What it asked for.
  int64_t memory_bytes = 0;
  int64_t growth_bytes = 0;
  uint64_t eviction = 0;
  uint64_t prefetch = 0;
  int64_t patience_ms = 0;
  // What it has.
  int64_t spill_bytes = 0;              // addresses
  std::atomic<int64_t> used_bytes = 0;  // of memory, with what it grew by
  ImageTiers tiers;
  // Either serves: the second was not told yet, perhaps.
  std::array<JobToken, 2> tokens;
  NextNumbers next;
  // Entries that were ever used; and whether there was one too few.
  std::atomic<uint32_t> entries = 0;
  std::atomic<uint32_t> is_incomplete = 0;
  // Its process had pins that stand here no more, as all ended.
  std::atomic<uint32_t> held_pins = 0;
};

enum class EntryKind : uint32_t { kFree, kTensor, kName, kPin, kQueue, kLent };

// Of a tensor, what changes.
struct TensorEntryState {
  uint64_t generation;
  int32_t below_kind;    // of the tier
  int32_t below_number;  // -1: no place
  int64_t below_offset;
  int64_t below_bytes;
  uint64_t below_generation;
  int64_t memory_offset;
  int64_t memory_bytes;  // 0: no copy
  uint64_t memory_generation;
  uint64_t is_lost;
};

inline constexpr uint32_t kNoEntry = UINT32_MAX;

struct TensorEntry {
  static constexpr size_t kNameBytes = 64;

  int64_t id;
  int64_t size_bytes;
  int64_t global_offset;
  int64_t step_number;
  uint32_t name_bytes;  // all of it
  uint32_t more;        // the entry that has the next part; kNoEntry: none
  std::array<TensorEntryState, 2> states;
  std::array<char, kNameBytes> name;
};

struct NameEntry {
  static constexpr size_t kNameBytes = 244;

  uint32_t more;
  std::array<char, kNameBytes> name;
};

struct PinEntry {
  uint64_t token;
  int64_t tensor;
  int64_t queue;
  int64_t access;
};

struct QueueEntry {
  int64_t id;
  int64_t window_offset;
  int64_t window_size;
  int64_t slots;
  int64_t window_bytes;
};

struct LentEntry {
  int64_t offset;
  int64_t size_bytes;
};

struct ImageEntry {
  std::atomic<EntryKind> kind;
  std::atomic<uint32_t> state;  // of a tensor's, that which is meant
  union {
    TensorEntry tensor;
    NameEntry name;
    PinEntry pin;
    QueueEntry queue;
    LentEntry lent;
  };
};
static_assert(sizeof(ImageEntry) == 256);
static_assert(std::atomic<EntryKind>::is_always_lock_free);

inline constexpr uint32_t kImageEntries = 1 << 22;
inline constexpr int64_t kImageHeaderBytes = 32 << 10;
static_assert(sizeof(ImageHeader) <= kImageHeaderBytes);
inline constexpr int64_t kImageBytes =
    kImageHeaderBytes + int64_t{kImageEntries} * int64_t{sizeof(ImageEntry)};

}  // namespace terrace
