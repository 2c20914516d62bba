#include "tests/support/runtime_fixture.h"

#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aio/make_engine.h"
#include "base/threads/pool_threads.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"
#include "tests/support/device/runtime_device.h"
#include "tiers/disk/disk_file.h"
#include "tiers/memory/far_medium.h"
#include "tiers/memory/host_arena.h"
#include "tiers/pmem/persist_domain.h"
#include "tiers/pmem/pmem_medium.h"

namespace terrace {

namespace {

struct Arrangement {
  const char* name;
  bool is_virtual;
  bool memory_disks;  // else files
  bool has_disks;
  bool has_far;
  bool has_pmem;
  bool has_hbm = false;
  bool has_nodes = false;  // a second memory; with a device a second device
};

constexpr Arrangement kArrangements[] = {
    {"Virtual", true, true, true, false, false},
    {"Memory", false, true, true, false, false},
    {"Uring", false, false, true, false, false},
    {"Threads", false, false, true, false, false},
    {"FarVirtual", true, true, false, true, false},
    {"Far", false, true, false, true, false},
    {"PmemVirtual", true, true, false, false, true},
    {"Pmem", false, true, false, false, true},
    {"ThreeVirtual", true, true, true, false, true},
    {"Three", false, true, true, false, true},
    {"FourVirtual", true, true, true, true, true},
    {"Four", false, true, true, true, true},
    {"HbmVirtual", true, true, true, false, false, true},
    {"Hbm", false, true, true, false, false, true},
    {"HbmPmemVirtual", true, true, true, false, true, true},
    {"HbmPmem", false, true, true, false, true, true},
    {"NodesVirtual", true, true, true, false, false, false, true},
    {"Nodes", false, true, true, false, false, false, true},
    {"HbmsVirtual", true, true, true, false, false, true, true},
    {"Hbms", false, true, true, false, false, true, true},
};

const Arrangement& ArrangementOf(TestWorld world) {
  return kArrangements[static_cast<size_t>(world)];
}

// Of any node's pages; where TERRACE_TEST_FAR is a number, of that node's.
LocalMapped MakeFar(int64_t bytes) {
  HostArenaOptions arena;
  arena.size_bytes = bytes;
  std::string name = "node1";
  if (const char* const node = std::getenv("TERRACE_TEST_FAR")) {
    arena.numa_node = std::atoi(node);
    name = absl::StrCat("node", arena.numa_node);
  }
  arena.huge_pages = HugePages::kOff;
  arena.inspect = false;
  LocalMapped far;
  far.spec = {TierKind::kFar, name, bytes};
  far.medium = std::make_shared<FarMedium>(name, *HostArena::Create(arena));
  return far;
}

}  // namespace

const char* TestWorldName(TestWorld world) { return ArrangementOf(world).name; }

std::ostream& operator<<(std::ostream& out, TestWorld world) {
  return out << TestWorldName(world);
}

absl::Status TestRuntime::Supports(TestWorld world) {
  const Arrangement& has = ArrangementOf(world);
  if (runtime_door != nullptr &&
      (has.is_virtual || has.has_hbm || has.has_nodes)) {
    return absl::UnimplementedError("nothing like it behind the door");
  }
  if (world == TestWorld::kUring) return MakeUringEngine().status();
  if (ArrangementOf(world).has_pmem) return PersistDomain::CheckAvailable();
  return absl::OkStatus();
}

TestRuntime::TestRuntime(TestWorld world, const TestRuntimeOptions& options)
    : PinPatterns(options.device),
      world_(world),
      faults_(std::make_shared<FaultPlan>()) {
  LocalRuntimeParts parts = MakeParts(options);
  // A device in memory has a file that grows as well.
  for (LocalPath& path : parts.paths) {
    disk_faults_.push_back(std::make_shared<DiskFaults>());
    path.file = MakeFaultDiskFile(std::move(path.file), disk_faults_.back());
  }
  if (is_virtual()) {
    TurnByHand(options, &parts);
    return;
  }
  parts.pool = MakeThreadPool(*MakePoolExecutor(2, {}));
  AddDevice(options, &parts);
  std::unique_ptr<LocalRuntime> runtime =
      *LocalRuntime::Start(std::move(parts));
  if (runtime_door == nullptr) {
    runtime_ = std::move(runtime);
    return;
  }
  ReachedRuntime reached = runtime_door(std::move(runtime));
  runtime_ = std::move(reached.runtime);
  behind_ = std::move(reached.behind);
}

bool TestRuntime::is_virtual() const {
  return ArrangementOf(world_).is_virtual;
}

std::unique_ptr<Executor> TestRuntime::QueuedBackground() {
  auto queued = std::make_unique<InlineExecutor>();
  background_.push_back(queued.get());
  return queued;
}

void TestRuntime::AddDevice(const TestRuntimeOptions& options,
                            LocalRuntimeParts* parts) {
  if (!ArrangementOf(world_).has_hbm) return;
  if (device_ != nullptr) {
    device_->AddTo(virtual_clock_, options.hbm_bytes, options.eviction, parts);
    return;
  }
  const int devices = ArrangementOf(world_).has_nodes ? 2 : 1;
  for (int k = 0; k < devices; ++k) {
    hbms_.push_back(
        std::make_unique<FakeHbm>(options.hbm_bytes, absl::StrCat("cuda:", k)));
    parts->devices.push_back(
        hbms_.back()->MakeDevice(ExecutorOf(parts->pool), *parts->clock,
                                 MakeEvictionPolicy(options.eviction)));
  }
}

void TestRuntime::TurnByHand(const TestRuntimeOptions& options,
                             LocalRuntimeParts* parts) {
  auto executor = std::make_shared<InlineExecutor>();
  InlineExecutor& tasks = *executor;
  parts->pool = MakeThreadPool(std::move(executor));
  parts->start_thread = false;
  AddDevice(options, parts);
  mapped_ = parts->mapped.size();
  for (LocalMapped& each : parts->mapped) each.background = QueuedBackground();
  for (LocalPath& path : parts->paths) path.background = QueuedBackground();
  std::unique_ptr<LocalRuntime> runtime =
      *LocalRuntime::Start(std::move(*parts));
  Mover& mover = runtime->mover();
  runtime_ = std::move(runtime);
  virtual_clock_.AddStep([this, &tasks] {
    return tasks.RunOne() ? virtual_clock_.Now() : absl::InfiniteFuture();
  });
  virtual_clock_.AddStep([this] {
    bool ran = false;
    for (size_t i = 0; i < background_.size(); ++i) {
      // One that hangs is never begun: it would keep the only thread.
      const bool hangs = i >= mapped_ && disk_faults_[i - mapped_]->hangs();
      if (!hangs) ran |= background_[i]->RunOne();
    }
    return ran ? virtual_clock_.Now() : absl::InfiniteFuture();
  });
  virtual_clock_.AddStep([&mover] {
    const absl::Time next = mover.RunOnce();
    const absl::Status invariants = mover.CheckInvariants();
    EXPECT_TRUE(invariants.ok()) << invariants;
    return next;
  });
}

LocalMapped TestRuntime::MakePmem(int64_t bytes) {
  folders_.push_back(std::make_unique<TemporaryDirectory>());
  LocalMapped pmem;
  pmem.spec = {TierKind::kPmem, folders_.back()->path(), bytes};
  pmem.medium = *PmemMedium::Open(
      {.place = pmem.spec.place, .budget_bytes = bytes, .unsafe_media = true});
  return pmem;
}

void TestRuntime::AddBehindFaults(LocalMapped tier, LocalRuntimeParts* parts) {
  media_.push_back(std::make_shared<FaultMedium>(std::move(tier.medium)));
  tier.medium = media_.back();
  parts->mapped.push_back(std::move(tier));
}

void TestRuntime::AddMapped(const TestRuntimeOptions& options,
                            LocalRuntimeParts* parts) {
  const Arrangement& has = ArrangementOf(world_);
  const int tiers = has.has_disks ? 1 : options.paths;
  const int64_t bytes =
      has.has_disks ? options.mapped_bytes : options.path_bytes;
  for (int i = 0; i < tiers; ++i) {
    if (has.has_far) AddBehindFaults(MakeFar(bytes), parts);
    if (has.has_pmem) AddBehindFaults(MakePmem(bytes), parts);
  }
}

LocalRuntimeParts TestRuntime::MakeParts(const TestRuntimeOptions& options) {
  const bool memory = ArrangementOf(world_).memory_disks;
  const int disks = ArrangementOf(world_).has_disks ? options.paths : 0;
  LocalRuntimeParts parts;
  parts.clock = &SystemClock();
  if (is_virtual()) parts.clock = &virtual_clock_;
  AddMapped(options, &parts);
  for (int path = 0; path < disks; ++path) {
    if (memory) {
      parts.paths.emplace_back().file =
          MakeMemoryDiskFile(path, options.path_bytes);
      continue;
    }
    DiskFileOptions disk;
    folders_.push_back(std::make_unique<TemporaryDirectory>());
    disk.path = folders_.back()->path();
    disk.segment_bytes = 1 << 20;
    parts.paths.emplace_back().file = *OpenDiskFile(disk);
  }
  std::unique_ptr<IoEngine> engine;
  if (memory) {
    engine = MakeMemoryEngine(disks, options.path_bytes, *parts.clock);
  } else if (world_ == TestWorld::kUring) {
    engine = *MakeUringEngine();
  } else {
    engine = MakeThreadEngine("asked for by a test");
  }
  engine = MakeFaultEngine(std::move(engine), faults_, *parts.clock);
  if (options.pace.read_bytes_per_second > 0 ||
      options.pace.write_bytes_per_second > 0) {
    engine = MakePacedEngine(std::move(engine), options.pace, *parts.clock);
  }
  parts.engine = std::move(engine);
  HostArenaOptions arena;
  arena.size_bytes = options.budget_bytes;
  arena.growth_bytes = options.growth_bytes;
  arena.huge_pages = HugePages::kOff;
  arena.shared = runtime_door != nullptr;
  if (arena.shared) arena.spill_bytes = kSpillBytes;
  parts.arena = *HostArena::Create(arena);
  if (spill_door != nullptr) parts.spill = spill_door(*parts.arena);
  if (options.make_pages) parts.pages = options.make_pages(*parts.arena);
  if (ArrangementOf(world_).has_nodes) {
    LocalMemory& node = parts.other_memories.emplace_back();
    node.spec = {TierKind::kDram, "node1", options.node_bytes};
    arena.size_bytes = options.node_bytes;
    arena.growth_bytes = 0;
    arena.shared = false;
    arena.spill_bytes = 0;
    node.arena = *HostArena::Create(arena);
    node.eviction = MakeEvictionPolicy(options.eviction);
  }
  parts.eviction = MakeEvictionPolicy(options.eviction);
  parts.prefetch = options.prefetch;
  parts.io_timeout = options.io_timeout;
  return parts;
}

TestRuntime::~TestRuntime() { Destroy(); }

void TestRuntime::Destroy() {
  // What never ended would keep the runtime from ending.
  if (runtime_ != nullptr) {
    faults_->Clear();
    for (const auto& faults : disk_faults_) faults->Clear();
    for (InlineExecutor* background : background_) background->RunAll();
    runtime_->Prefetch({});  // wakes the mover, which then sees it
  }
  runtime_.reset();
  behind_.reset();
  for (const auto& folder : folders_) {
    EXPECT_TRUE(folder->empty()) << folder->path();
  }
  folders_.clear();
}

TensorId TestRuntime::Register(const std::string& name, int64_t size_bytes) {
  TensorSpec spec;
  spec.name = name;
  spec.size_bytes = size_bytes;
  absl::StatusOr<TensorId> id = runtime_->Register(spec);
  EXPECT_TRUE(id.ok()) << id.status();
  if (id.ok()) sizes_[*id] = size_bytes;
  return id.value_or(TensorId());
}

std::vector<TensorId> TestRuntime::RegisterMany(int count, int64_t size_bytes) {
  std::vector<TensorId> tensors;
  for (int i = 0; i < count; ++i) {
    tensors.push_back(Register("tensor " + std::to_string(i), size_bytes));
  }
  return tensors;
}

std::unique_ptr<RequestQueue> TestRuntime::OpenQueue(int64_t slot_bytes,
                                                     int slots,
                                                     const char* tier) {
  auto queue = runtime_->OpenQueue(slot_bytes, slots, Soon(), tier);
  EXPECT_TRUE(queue.ok()) << queue.status();
  return queue.ok() ? *std::move(queue) : nullptr;
}

absl::StatusOr<Pin> TestRuntime::Take(RequestQueue& queue, TensorId tensor,
                                      Access access) {
  absl::Status pushed = queue.Push({{tensor, access}}, 0, Soon());
  if (!pushed.ok()) return pushed;
  absl::StatusOr<Ready> ready = queue.Next(Soon());
  if (!ready.ok()) return ready.status();
  if (!ready->pins.ok()) return ready->pins.status();
  return std::move(ready->pins->front());
}

void TestRuntime::Fill(RequestQueue& queue, TensorId tensor, uint8_t seed) {
  absl::StatusOr<Pin> pin = Take(queue, tensor, Access::kOverwrite);
  ASSERT_TRUE(pin.ok()) << pin.status();
  Write(*pin, seed);
}

bool TestRuntime::Holds(RequestQueue& queue, TensorId tensor, uint8_t seed) {
  absl::StatusOr<Pin> pin = Take(queue, tensor, Access::kRead);
  EXPECT_TRUE(pin.ok()) << pin.status();
  return pin.ok() && Has(*pin, seed);
}

void PinPatterns::Write(const Pin& pin, uint8_t seed) {
  const int64_t size_bytes = sizes_.at(pin.tensor());
  if (!pin.data().empty() || device_ == nullptr) {
    return WritePattern(PayloadOf(pin, size_bytes), seed);
  }
  std::vector<std::byte> bytes(static_cast<size_t>(size_bytes));
  WritePattern(absl::MakeSpan(bytes), seed);
  device_->Write(pin.address(), bytes);
}

bool PinPatterns::Has(const Pin& pin, uint8_t seed) {
  const int64_t size_bytes = sizes_.at(pin.tensor());
  if (!pin.data().empty() || device_ == nullptr) {
    return HasPattern(PayloadOf(pin, size_bytes), seed);
  }
  std::vector<std::byte> bytes(static_cast<size_t>(size_bytes));
  device_->Read(pin.address(), absl::MakeSpan(bytes));
  return HasPattern(bytes, seed);
}

bool TestRuntime::WaitUntil(const std::function<bool()>& done) {
  if (is_virtual()) {
    // done() may itself ask the mover, so it is not called inside the pump.
    for (int i = 0; i < 1000 && !done(); ++i) {
      if (!virtual_clock_.Advance(Now() + absl::Seconds(1))) break;
    }
    return done();
  }
  const absl::Time deadline = Soon();
  while (!done()) {
    if (Now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

std::byte PatternByte(uint8_t seed, int64_t i) {
  return static_cast<std::byte>(seed * 37 + i * 11 + (i >> 8) * 5 + 1);
}

void WritePattern(absl::Span<std::byte> data, uint8_t seed) {
  for (size_t i = 0; i < data.size(); ++i) {
    data[i] = PatternByte(seed, static_cast<int64_t>(i));
  }
}

bool HasPattern(absl::Span<const std::byte> data, uint8_t seed) {
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] != PatternByte(seed, static_cast<int64_t>(i))) return false;
  }
  return true;
}

}  // namespace terrace
