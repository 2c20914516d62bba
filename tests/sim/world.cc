#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/threads/pool_threads.h"
#include "gtest/gtest.h"
#include "kernels/pool_executor.h"

namespace terrace {

void VirtualExecutor::Queue(std::function<void()> task, Lane lane) {
  tasks_.Run(std::move(task), lane);
  absl::Duration cost = cost_;
  if (spread_ > absl::ZeroDuration()) {
    cost += absl::Nanoseconds(static_cast<int64_t>(
        random_() % static_cast<uint64_t>(absl::ToInt64Nanoseconds(spread_))));
  }
  absl::Time& server =
      *std::min_element(busy_until_.begin(), busy_until_.end());
  server = std::max(server, clock_.Now()) + cost;
  clock_.AddEvent(server, [this] { TERRACE_CHECK(tasks_.RunOne()); });
}

World::World(const WorldOptions& options)
    : faults_(std::make_shared<FaultPlan>(options.seed)),
      paces_(std::make_shared<PaceBoard>(options.pace)),
      check_every_(options.check_every) {
  Clock& clock = InRealTime() ? SystemClock() : clock_;
  LocalRuntimeParts parts;
  parts.clock = &clock;
  parts.start_thread = InRealTime();
  parts.pool = MakeThreadPool(MakeExecutor(options));
  HostArenaOptions memory;
  memory.size_bytes = options.budget_bytes;
  memory.huge_pages = HugePages::kOff;
  memory.shared = InRealTime();
  if (memory.shared) memory.spill_bytes = kSpillBytes;
  auto arena = HostArena::Create(memory);
  EXPECT_TRUE(arena.ok()) << arena.status();
  parts.arena = *std::move(arena);
  if (spill_door != nullptr) parts.spill = spill_door(*parts.arena);
  std::unique_ptr<IoEngine> engine =
      MakeMemoryEngine(options.paths, options.path_bytes, clock);
  engine = MakeFaultEngine(std::move(engine), faults_, clock);
  engine = MakePacedEngine(std::move(engine), paces_, clock);
  parts.engine = std::move(engine);
  for (const TierSpec& tier : options.mapped) AddMapped(tier, &parts);
  for (const int64_t bytes : options.other_memories) {
    AddMemory(bytes, options.eviction, &parts);
  }
  for (int i = 0; i < options.devices && options.hbm_bytes > 0; ++i) {
    AddDevice(options, &parts);
  }
  if (options.devices < 2 && options.other_memories.empty()) {
    working_tiers_.clear();
  }
  AddPaths(options, &parts);
  parts.eviction = MakeEvictionPolicy(options.eviction);
  parts.prefetch = options.prefetch;
  parts.io_timeout = options.io_timeout;
  parts.transcript = options.transcript;
  auto runtime = LocalRuntime::Start(std::move(parts));
  EXPECT_TRUE(runtime.ok()) << runtime.status();
  if (InRealTime()) {
    runtime_ = runtime_door(*std::move(runtime));
    return;
  }
  mover_ = &(*runtime)->mover();
  runtime_.runtime = *std::move(runtime);
  step_ = clock_.AddStep([this] { return Turn(); });
}

void World::AddPaths(const WorldOptions& options, LocalRuntimeParts* parts) {
  for (int path = 0; path < options.paths; ++path) {
    LocalPath& disk = parts->paths.emplace_back();
    disk.file = MakeMemoryDiskFile(
        path, options.path_budgets.empty()
                  ? options.path_bytes
                  : options.path_budgets[static_cast<size_t>(path)]);
    disk.queue = options.io;
    if (InRealTime()) continue;
    auto background = std::make_unique<InlineExecutor>();
    background_.push_back(background.get());
    disk.background = std::move(background);
  }
}

absl::Time World::Now() {
  return InRealTime() ? SystemClock().WallNow() : clock_.Now();
}

void World::Pass(absl::Duration duration) {
  if (!InRealTime()) {
    clock_.RunUntil([] { return false; }, clock_.Now() + duration);
    return;
  }
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  SystemClock().Await(
      mutex, never, [] { return false; }, SystemClock().Now() + duration);
}

void World::PassToEvent(absl::Duration most) {
  if (InRealTime()) return Pass(most);
  clock_.Advance(clock_.Now() + most);
}

std::unique_ptr<Executor> World::MakeExecutor(const WorldOptions& options) {
  if (InRealTime()) return *MakePoolExecutor(options.parallelism, {});
  if (options.threads > 0) {
    auto threads = std::make_unique<VirtualThreads>(options.threads,
                                                    options.task_cost, clock_);
    threads_ = threads.get();
    return threads;
  }
  auto executor = std::make_unique<VirtualExecutor>(
      options.parallelism, options.task_cost, options.task_spread, options.seed,
      clock_);
  executor_ = executor.get();
  return executor;
}

void World::AddDevice(const WorldOptions& options, LocalRuntimeParts* parts) {
  const std::string number = absl::StrCat(hbms_.size());
  hbms_.push_back(std::make_unique<FakeHbm>(options.hbm_bytes,
                                            absl::StrCat("cuda:", number)));
  FakeHbm& hbm = *hbms_.back();
  Medium* copied = nullptr;
  if (threads_ != nullptr) copied = Paced(MediumOf(hbm.memory)).get();
  parts->devices.push_back(hbm.MakeDevice(ExecutorOf(parts->pool), clock_,
                                          MakeEvictionPolicy(options.eviction),
                                          copied));
  working_tiers_.push_back(absl::StrCat("hbm:", number));
}

void World::AddMemory(int64_t budget_bytes, EvictionKind eviction,
                      LocalRuntimeParts* parts) {
  if (working_tiers_.empty()) working_tiers_.emplace_back("dram");
  LocalMemory& memory = parts->other_memories.emplace_back();
  memory.spec = {TierKind::kDram,
                 absl::StrCat("node", parts->other_memories.size()),
                 budget_bytes};
  auto arena = HostArena::Create(
      {.size_bytes = budget_bytes, .huge_pages = HugePages::kOff});
  EXPECT_TRUE(arena.ok()) << arena.status();
  memory.arena = *std::move(arena);
  memory.eviction = MakeEvictionPolicy(eviction);
  working_tiers_.push_back(TierName(memory.spec));
}

std::shared_ptr<PacedMedium> World::Paced(std::shared_ptr<Medium> medium) {
  paced_.push_back(std::make_shared<PacedMedium>(
      std::move(medium), PaceOptions(), clock_,
      [threads = threads_](absl::Time time) { threads->SleepUntil(time); }));
  return paced_.back();
}

void World::AddMapped(const TierSpec& tier, LocalRuntimeParts* parts) {
  mapped_.push_back(std::make_shared<FarMemory>(tier.place, tier.budget_bytes));
  std::shared_ptr<Medium> medium = MediumOf(mapped_.back());
  if (threads_ != nullptr) medium = Paced(std::move(medium));
  auto background = std::make_unique<InlineExecutor>();
  background_.push_back(background.get());
  parts->mapped.push_back({.spec = tier,
                           .medium = std::move(medium),
                           .background = std::move(background)});
}

World::~World() {
  ClearFaults();
  const absl::Status closed = runtime_->Close(Now() + absl::Seconds(600));
  EXPECT_TRUE(closed.ok()) << closed;
  if (InRealTime()) return;
  // Those that found nothing left to copy.
  EXPECT_TRUE(clock_.RunUntil([this] { return waiting_tasks() == 0; }));
  EXPECT_TRUE(broken_.ok()) << broken_;
  clock_.RemoveStep(step_);
}

void World::ClearFaults() {
  faults_->Clear();
  for (const auto& memory : mapped_) memory->faults.Clear();
  for (const auto& hbm : hbms_) {
    hbm->faults().Clear();
    hbm->held->next = 0;
    hbm->held->release = true;
  }
  // A mover that sleeps sees it once it is woken.
  if (InRealTime()) runtime_->Prefetch({});
}

absl::Time World::Turn() {
  for (InlineExecutor* background : background_) background->RunAll();
  const absl::Time next = mover_->RunOnce();
  ++mover_steps_;
  if (mover_steps_ % check_every_ == 0 && broken_.ok() && !mover_->closed()) {
    broken_ = mover_->CheckInvariants();
  }
  return next;
}

}  // namespace terrace
