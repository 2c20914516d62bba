// What a machine can do for Terrace, what it has left, and what would make it
// faster.
//
//   const auto report = terrace::ProbeMachine({"/mnt/nvme0"});
//   for (const auto& finding : report.findings) Show(finding);
//   if (!report.usable()) return 1;
//
// Plain values: a snapshot, since others use the same machine. Nothing here
// needs a privilege. A number that the kernel does not tell is -1, a text that
// it does not tell is empty. Functions are thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "terrace/tier.h"

namespace terrace {

// Bytes that an ordinary user may still write to the file system of this
// directory. NotFound: it does not exist; InvalidArgument: it is no
// directory; PermissionDenied: it cannot be reached.
absl::StatusOr<int64_t> FreeDiskBytes(const std::string& directory);

// Bytes that this process can still use without pushing others out: what the
// kernel calls available, cut to what the limits of its control groups leave.
// INT64_MAX where the kernel says nothing.
int64_t AvailableMemoryBytes();

// The instruction set that the kernels use: "AVX-512", "AVX2", "NEON" or
// "scalar". The widest that this processor has; results do not depend on it,
// speed does.
std::string InstructionSetName();

// A limit that is not there.
inline constexpr int64_t kNoLimit = INT64_MAX;

struct NumaNodeReport {
  int index = 0;
  int64_t memory_bytes = -1;
  std::vector<int> cpus;  // empty: a memory-only node (CXL)
};

struct ProcessorReport {
  std::string model;
  int cpus = 0;   // that this process may run on
  int cores = 0;  // physical ones among them
  std::vector<NumaNodeReport> nodes;
  std::string topology_error;  // why cpus, cores and nodes are unknown
  std::vector<std::string> instruction_sets;  // of the kernels, best first
  std::string instruction_set;                // in use
};

struct HugePagePoolReport {  // hugetlb; in pages
  int64_t page_bytes = 0;
  int64_t total = -1;
  int64_t free = -1;
  int64_t reserved = -1;
};

struct MemoryReport {
  int64_t total_bytes = -1;
  int64_t available_bytes = -1;
  int64_t swap_bytes = -1;
  // Transparent huge pages: the setting in force, such as "madvise".
  std::string transparent;
  std::string transparent_defrag;
  std::string transparent_shared;
  int64_t huge_page_bytes = -1;
  double huge_page_share = -1;  // of some MiB that were advised and touched
  std::vector<HugePagePoolReport> pools;
  // RLIMIT_MEMLOCK; io_uring charges it to the user, not to the process.
  int64_t locked_limit_bytes = -1;
  int64_t locked_hard_limit_bytes = -1;
  bool locked_limit_exempt = false;  // CAP_IPC_LOCK
};

struct UringReport {
  bool available = false;
  std::string error;                     // of io_uring_setup, "EPERM (...)"
  int disabled_setting = -1;             // sysctl kernel.io_uring_disabled
  std::vector<std::string> setup_flags;  // that the kernel takes, with others
  std::vector<std::string> features;
  std::vector<std::string> missing_operations;  // of those that Terrace uses
  bool registers_files = false;
  // The largest of a few sizes that could be registered, and of the first that
  // could not, why. Equal to the largest tried: there may be no limit.
  int64_t registered_bytes = 0;
  int64_t registered_bytes_tried = 0;
  std::string register_error;
};

struct ContainerReport {
  std::string runtime;    // "docker", "podman", ...; empty: none is seen
  int group_version = 0;  // of the control groups that limit memory; 0: none
  int64_t memory_limit_bytes = kNoLimit;  // tightest up to the root
  int64_t memory_used_bytes = -1;         // of the group that has it
  double cpu_limit = 0;                   // processors' worth; 0: no limit
  int64_t task_limit = kNoLimit;
  bool seccomp = false;  // a filter is in force
  int64_t open_files_limit = kNoLimit;
  int64_t file_size_limit_bytes = kNoLimit;
};

struct GpuDeviceReport {
  std::string name;
  std::string uuid;
  std::string bus;            // PCI address
  int64_t memory_bytes = -1;  // known where NVIDIA's management library is
  int compute_major = -1;
  int compute_minor = -1;
};

struct GpuReport {
  std::string driver_version;   // empty: no driver is loaded
  bool has_cuda = false;        // libcuda can be loaded
  std::string cuda_error;       // why not
  int cuda_version = -1;        // 13000 for 13.0
  int display_controllers = 0;  // NVIDIA's on the PCI bus, driver or not
  std::vector<GpuDeviceReport> devices;
};

struct DriveReport {
  std::string name;  // "nvme0n1"
  std::string model;
  std::string serial;     // or its world-wide name
  std::string transport;  // "pcie", "tcp", "virtio", ...
  int64_t size_bytes = -1;
  int rotational = -1;  // virtual drives often say 1 whatever they are
  int64_t max_sectors_bytes = -1;  // one request at most
  int64_t max_hw_sectors_bytes = -1;
  int64_t max_segments = -1;
  int64_t queue_requests = -1;
  std::string scheduler;
  std::string write_cache;  // "write back": holds data that no flush has seen
  int64_t logical_block_bytes = -1;
  int64_t physical_block_bytes = -1;
  int numa_node = -1;
  int link_width = -1;  // PCIe lanes in use, and those that it has
  int link_width_max = -1;
};

enum class FileSystemKind : uint8_t {
  kDisk,
  kMemory,   // tmpfs: its bytes are host memory
  kLayered,  // overlay: a container's own layer
  kNetwork,
  kUserSpace,  // FUSE
};

struct PathReport {
  std::string path;     // as asked for
  absl::Status status;  // why it cannot be used
  std::string kind;     // "directory", "file" or "block device"
  std::string mount_point;
  std::string file_system;  // "ext4"
  FileSystemKind file_system_kind = FileSystemKind::kDisk;
  std::string source;  // "/dev/nvme0n1p1", "server:/export"
  std::string mount_options;
  int64_t total_bytes = -1;
  int64_t free_bytes = -1;  // for an ordinary user
  bool direct_io = false;   // O_DIRECT was opened and moved data
  std::string direct_io_error;
  // What statx tells (0: it does not), and the least that worked.
  int64_t told_memory_alignment = 0;
  int64_t told_offset_alignment = 0;
  int64_t memory_alignment = -1;
  int64_t offset_alignment = -1;
  // Block devices from the file system down to the drives, each "sda2
  // (partition)", "dm-0 (crypt)", "md0 (raid0)" or "nvme0n1".
  std::vector<std::string> stack;
  std::vector<DriveReport> drives;  // empty: no block device is behind it
};

// A tier that was asked about, or a memory node of the machine.
struct TierReport {
  TierSpec tier;        // the node that was asked for is its place
  bool named = false;   // asked about; else a node that there is
  absl::Status status;  // why it cannot be had, whatever its budget
  int64_t size_bytes = -1;
  int64_t free_bytes = -1;
  // Of memory, by some MiB of it that were taken for a moment.
  int64_t page_bytes = -1;
  double huge_page_share = -1;
  int found_node = -1;       // that they came from; -1: several, or unknown
  bool memory_only = false;  // the node has no processors, as of CXL
  // The kernel has the node as movable memory, which leaves it when pinned.
  bool movable = false;
  std::string dax_device;  // whose memory the node is: "dax0.0"
  // Whether some of them could be registered with a ring, and stayed on the
  // node: 1; 0: no, with the reason, the errno first; -1: nothing tells.
  int can_pin = -1;
  std::string pin_error;
  // Of persistent memory, and of disks as far as it goes for them.
  std::string file_system;  // "devdax": a DAX device
  std::string source;
  std::string mount_point;
  std::string granularity;  // of a store: "BYTE", "CACHE_LINE" or "PAGE"
  std::string granularity_cause;
  int64_t bad_bytes = -1;  // of the size
  // How often its power was lost before its stores were safe.
  int64_t unsafe_shutdowns = -1;
};

enum class Severity : uint8_t {
  kNote,     // good to know
  kSlower,   // costs speed or safety
  kMissing,  // nothing works without it
};

// "note", "slower", "missing".
const char* SeverityName(Severity severity);

struct Finding {
  Severity severity = Severity::kNote;
  std::string subject;  // "huge pages", "/mnt/nvme0", "nvme0n1"
  std::string what;     // what is so, and what it costs
  std::string command;  // what mends it, for a shell; empty: nothing does
};

struct MachineReport {
  std::string machine_id;  // of /etc/machine-id
  std::string kernel;      // "6.1.0-18-amd64"
  std::string architecture;
  ProcessorReport processor;
  MemoryReport memory;
  UringReport uring;
  std::string engine;  // that a Runtime would take, and why
  std::string engine_reason;
  ContainerReport container;
  GpuReport gpu;
  std::vector<PathReport> paths;
  std::vector<TierReport> tiers;  // as asked about; else all memory nodes
  std::vector<Finding> findings;  // worst first

  // Nothing necessary is missing.
  bool usable() const {
    for (const Finding& finding : findings) {
      if (finding.severity == Severity::kMissing) return false;
    }
    return true;
  }
};

// Takes some tens of milliseconds, and as many for each tier. Meanwhile it uses
// memory: 8 MiB to see huge pages, here and of each memory tier, and up to 64
// MiB that io_uring is asked to pin. Writes 64 KiB to a nameless file below
// each directory of `paths` and of the tiers of disks, which are looked at as
// paths too, and takes 4 KiB below one of persistent memory; nothing goes to
// files and devices. What cannot be read is left unknown; what that means is a
// finding. Without `tiers` all memory nodes are looked at.
MachineReport ProbeMachine(const std::vector<std::string>& paths,
                           const std::vector<TierSpec>& tiers = {});

// Whether the far memory and the persistent memory among `tiers` could be had
// now, without taking any: OK, or the error that Runtime::Create has for the
// first that could not, which names it. `unsafe_media` as Options has it.
absl::Status CheckMappedTiers(const std::vector<TierSpec>& tiers,
                              bool unsafe_media);

// The whole report as JSON; docs/machine.md explains each key.
std::string ToJson(const MachineReport& report);

// How fast a path moves pieces of one size with `window_bytes` of them in
// flight.
struct RateProfile {
  std::string direction;  // "read", "write" or "mixed": one of each in turn
  int64_t piece_bytes = 0;
  int64_t window_bytes = 0;
  double bytes_per_second = 0;  // of both directions together
  double latency_p50_us = 0;    // of one piece
  double latency_p99_us = 0;
};

struct PathProfile {
  std::string path;
  std::vector<std::string> drives;  // name, model and serial of each
  std::string engine;
  bool direct_io = false;
  std::vector<RateProfile> rates;
};

// How fast bytes go between memory and a mapped tier, far memory or persistent
// memory: the median over pieces of 1 MiB, of all threads together.
struct TierProfile {
  std::string tier;                  // as TierName has it: "far:node2"
  double read_bytes_per_second = 0;  // from the tier to memory
  double write_bytes_per_second = 0;
};

// What was measured of a machine, to be kept: `terrace tune` writes it.
struct MachineProfile {
  std::string machine_id;
  std::string kernel;
  std::string processor;
  int64_t measured_at = 0;  // seconds since 1970
  int threads = 0;          // of the following, each on memory of its own
  double copy_bytes_per_second = 0;  // copied, so read and written as often
  std::string instruction_set;
  double adam_elements_per_second = 0;  // fp32; each reads 16 bytes, writes 12
  std::vector<PathProfile> paths;
  std::vector<TierProfile> tiers;  // none in older profiles
};

struct TuneOptions {
  std::vector<std::string> paths;  // directories
  std::vector<TierSpec> tiers;     // far memory and persistent memory
  // Of each path's nameless file, which is written once before it is measured;
  // at most a quarter of what is free. Of each tier as well, within its budget.
  int64_t file_bytes = int64_t{256} << 20;
  absl::Duration per_rate = absl::Milliseconds(200);
  bool unsafe_media = false;  // as Options has it
};

// Takes some seconds for each path, one for each tier; meanwhile nothing else
// should use the machine, up to 2 GiB of whose memory it takes: 64 MiB for each
// core. Tiers are taken as a Runtime takes them, and refused by the same
// errors, which name the tier. DeadlineExceeded: a path did not answer for a
// minute; engine and buffers are left behind, which the kernel may still use.
// InvalidArgument: a path or tier twice, a tier of another kind, a file of less
// than 32 MiB, no time; ResourceExhausted: no space or no memory for it; else
// what the path's file system answers, naming the path.
absl::StatusOr<MachineProfile> MeasureMachine(const TuneOptions& options);

// A profile as JSON, as docs/machine.md explains it. Writing replaces the file
// at once or not at all, and makes the folders above it. Reading: NotFound, or
// InvalidArgument with the key that is wrong.
std::string ToJson(const MachineProfile& profile);
absl::Status WriteProfile(const MachineProfile& profile,
                          const std::string& file);
absl::StatusOr<MachineProfile> ReadProfile(const std::string& file);

// Why a profile does not hold for the machine of this report, a sentence each:
// another machine, kernel or processor, another drive behind a path, a path, or
// a named far or pmem tier, that was not measured or cannot be had. Empty: it
// holds.
std::vector<std::string> FindStale(const MachineProfile& profile,
                                   const MachineReport& report);

}  // namespace terrace
