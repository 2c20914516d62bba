// Runtimes for tests: the production mover, table and queues, unmodified, on
// an engine with faults; in virtual time turned by hand, or with threads.
//
//   TestRuntime world(TestWorld::kVirtual, {.budget_bytes = 64 << 10});
//   TensorId tensor = world.Register("a", 8192);
//   world.Fill(tensor, 7);
//   EXPECT_TRUE(world.Holds(tensor, 7));
//
// In virtual time the mover's invariants are checked after each of its steps,
// and every wait is the clock's. One thread uses it; runtime() is as the
// interface says. Files are made below the test's temporary folder and are
// gone with the object.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "runtime/local_runtime.h"
#include "tests/support/door/runtime_door.h"
#include "tests/support/fault_disk_file.h"
#include "tests/support/fault_engine.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/fake_hbm.h"
#include "tests/support/medium/fault_medium.h"
#include "tests/support/temporary_directory.h"

namespace terrace {

// What tensors rest on, and by what it moves. In virtual time one thread does
// everything; elsewhere the mover has its own, and tasks have two.
enum class TestWorld : uint8_t {
  kVirtual,       // memory engine, virtual time
  kMemory,        // memory engine
  kUring,         // files
  kThreads,       // files
  kFarVirtual,    // no disks: each path is far memory instead
  kFar,           //
  kPmemVirtual,   // no disks: each path is a file that plays persistent memory
  kPmem,          //
  kThreeVirtual,  // a little persistent memory above disks
  kThree,         //
  kFourVirtual,   // a little far and persistent memory above disks
  kFour,          //
  kHbmVirtual,    // a device's memory above it, disks below
  kHbm,           //
  kHbmPmemVirtual,  // as that, a little persistent memory above the disks
  kHbmPmem,         //
  kNodesVirtual,    // two memories, disks below
  kNodes,           //
  kHbmsVirtual,     // two devices above two memories, disks below
  kHbms,            //
};

inline constexpr TestWorld kDiskWorlds[] = {
    TestWorld::kVirtual, TestWorld::kMemory, TestWorld::kUring,
    TestWorld::kThreads};
inline constexpr TestWorld kAllWorlds[] = {
    TestWorld::kVirtual,        TestWorld::kMemory,
    TestWorld::kUring,          TestWorld::kThreads,
    TestWorld::kFarVirtual,     TestWorld::kFar,
    TestWorld::kPmemVirtual,    TestWorld::kPmem,
    TestWorld::kThreeVirtual,   TestWorld::kThree,
    TestWorld::kFourVirtual,    TestWorld::kFour,
    TestWorld::kHbmVirtual,     TestWorld::kHbm,
    TestWorld::kHbmPmemVirtual, TestWorld::kHbmPmem};

// Several tiers of a kind, each by a text of its own.
inline constexpr TestWorld kSeveralWorlds[] = {
    TestWorld::kNodesVirtual, TestWorld::kNodes, TestWorld::kHbmsVirtual,
    TestWorld::kHbms};

const char* TestWorldName(TestWorld world);
std::ostream& operator<<(std::ostream& out, TestWorld world);

// What a test waits for at most, and what it gives a healthy device: so many
// times as long as TERRACE_TEST_SLOW says that this machine is slower, as one
// that is emulated.
inline absl::Duration OnThisMachine(absl::Duration time) {
  const char* const slow = std::getenv("TERRACE_TEST_SLOW");
  return slow == nullptr ? time : time * std::atof(slow);
}

class RuntimeDevice;

struct TestRuntimeOptions {
  int64_t budget_bytes = 64 << 10;
  int64_t growth_bytes = 0;       // that GrowMemory may add
  int64_t hbm_bytes = 64 << 10;   // where there is a device, of each
  int64_t node_bytes = 64 << 10;  // of another memory than the first
  // The one that there is; null: plain bytes that a Copy transport moves.
  std::shared_ptr<RuntimeDevice> device;
  int paths = 1;
  int64_t path_bytes = 16 << 20;
  int64_t mapped_bytes = 4 * 4096;  // of each mapped tier above disks
  EvictionKind eviction = EvictionKind::kNextUse;
  bool prefetch = true;
  absl::Duration io_timeout = absl::Seconds(60);
  PaceOptions pace;  // above the faults
  // Of the arena, as it is lent; null: it cannot be.
  std::function<std::shared_ptr<PageSource>(HostArena&)> make_pages;
};

// The payloads of pins at either working tier, as patterns.
class PinPatterns {
 public:
  explicit PinPatterns(std::shared_ptr<RuntimeDevice> device)
      : device_(std::move(device)) {}

  void Write(const Pin& pin, uint8_t seed);
  bool Has(const Pin& pin, uint8_t seed);

 protected:
  std::map<TensorId, int64_t> sizes_;            // of the tensors
  const std::shared_ptr<RuntimeDevice> device_;  // null: plain bytes
};

class TestRuntime : public PinPatterns {
 public:
  // Whether the machine has what this world stands on; else why not.
  static absl::Status Supports(TestWorld world);

  TestRuntime(TestWorld world, const TestRuntimeOptions& options);
  ~TestRuntime();

  Runtime& runtime() { return *runtime_; }
  FaultPlan& faults() { return *faults_; }
  // Of path k's file.
  DiskFaults& disk_faults(int path) {
    return *disk_faults_[static_cast<size_t>(path)];
  }
  // Device k, where there is no device of its own.
  FakeHbm& hbm(size_t k = 0) { return *hbms_[k]; }
  // Of mapped tier k; how many there are.
  FaultMedium& medium_faults(int k) { return *media_[static_cast<size_t>(k)]; }
  int mediums() const { return static_cast<int>(media_.size()); }
  VirtualClock& virtual_clock() { return virtual_clock_; }
  bool is_virtual() const;
  absl::Time Now() { return ClockOf(*runtime_).Now(); }
  absl::Time Soon() { return Now() + OnThisMachine(absl::Seconds(30)); }
  // The folder of path k, as the runtime was told; empty for memory.
  std::string folder(int path) const {
    return folders_.empty() ? "" : folders_[static_cast<size_t>(path)]->path();
  }

  // Ends the runtime, as its owner would.
  void Destroy();
  // For a forked child, which ends it alone.
  Runtime* ReleaseRuntime() { return runtime_.release(); }

  // What a test cannot do without; failures fail the test.
  TensorId Register(const std::string& name, int64_t size_bytes);
  std::vector<TensorId> RegisterMany(int count, int64_t size_bytes);
  std::unique_ptr<RequestQueue> OpenQueue(int64_t slot_bytes, int slots,
                                          const char* tier = "");
  // A group of one.
  absl::StatusOr<Pin> Take(RequestQueue& queue, TensorId tensor, Access access);
  // Overwrites the tensor with a pattern of `seed`, and publishes it.
  void Fill(RequestQueue& queue, TensorId tensor, uint8_t seed);
  // Whether its contents are that pattern, as read through the queue.
  bool Holds(RequestQueue& queue, TensorId tensor, uint8_t seed);

  // Until done() or half a minute; in virtual time nothing passes but events.
  bool WaitUntil(const std::function<bool()>& done);

 private:
  LocalRuntimeParts MakeParts(const TestRuntimeOptions& options);
  void AddDevice(const TestRuntimeOptions& options, LocalRuntimeParts* parts);
  void AddMapped(const TestRuntimeOptions& options, LocalRuntimeParts* parts);
  LocalMapped MakePmem(int64_t bytes);
  void AddBehindFaults(LocalMapped tier, LocalRuntimeParts* parts);
  void TurnByHand(const TestRuntimeOptions& options, LocalRuntimeParts* parts);
  std::unique_ptr<Executor> QueuedBackground();

  const TestWorld world_;
  VirtualClock virtual_clock_;
  std::shared_ptr<FaultPlan> faults_;
  std::vector<std::shared_ptr<DiskFaults>> disk_faults_;
  std::vector<std::shared_ptr<FaultMedium>> media_;
  std::vector<std::unique_ptr<FakeHbm>> hbms_;
  std::vector<std::unique_ptr<TemporaryDirectory>> folders_;  // none: memory
  // Virtual: the runtime's, of mapped tiers, then of disks.
  std::vector<InlineExecutor*> background_;
  size_t mapped_ = 0;             // of those
  std::shared_ptr<void> behind_;  // the runtime, where there is a door
  std::unique_ptr<Runtime> runtime_;
};

// Byte i of the pattern of `seed`.
std::byte PatternByte(uint8_t seed, int64_t i);
void WritePattern(absl::Span<std::byte> data, uint8_t seed);
bool HasPattern(absl::Span<const std::byte> data, uint8_t seed);

}  // namespace terrace
