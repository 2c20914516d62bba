#include "daemon/server/job_table.h"

#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "base/text/utf8.h"
#include "daemon/config/user_names.h"
#include "daemon/jobs/image/other_process.h"
#include "daemon/jobs/media/job_media.h"
#include "daemon/wire/lending_patience.h"
#include "terrace/version.h"
#include "tiers/memory/host_arena.h"

namespace terrace {
namespace {

constexpr size_t kMostNameBytes = 255;
constexpr size_t kMostVersionBytes = 32;
// Where a quota says nothing.
constexpr int64_t kRequests = 1 << 20;
// Half of an address space.
constexpr int64_t kMostAddressBytes = int64_t{1} << 46;

JobTiers TiersFor(const DaemonConfig& config, TierLedger* ledger,
                  JobLinks* links, const JobTable::Parts& parts) {
  JobTiers tiers;
  tiers.store = parts.store;
  tiers.ledger = ledger;
  tiers.links = links;
  tiers.pool = parts.pool;
  tiers.media = parts.media;
  tiers.memory = config.Memory();
  for (const TierSpec& each : config.TierSpecs()) {
    if (each.kind == TierKind::kDisk) tiers.below.push_back(each);
    const bool is_mapped =
        each.kind == TierKind::kFar || each.kind == TierKind::kPmem;
    if (is_mapped) tiers.mapped.push_back(each);
  }
  return tiers;
}

// Whether a line, and a label of metrics, can have it: UTF-8 without control
// characters.
bool IsText(absl::string_view text) {
  while (!text.empty()) {
    const Utf8Character first = FirstCharacterOf(text);
    if (first.bytes == 0 || IsControl(first.point)) return false;
    text.remove_prefix(first.bytes);
  }
  return true;
}

absl::Status OfJob(const JobName& name, const absl::Status& why) {
  return absl::Status(
      why.code(),
      absl::StrCat(JobText(name), ": ", absl::string_view(why.message())));
}

// Of the daemon's own address space.
int64_t AddressBytesOf(const JobTiers& tiers, const JobName& name,
                       const Hello& hello) {
  const JobAddresses more = AddressesOf(tiers, name, hello);
  return MemoryBytesOf(hello) + more.growth_bytes + more.spill_bytes +
         MediaAddressBytes(tiers, name);
}

// Once its memory is its own, which others are to lend first, perhaps.
absl::StatusOr<JobRuntime> MakeNewRuntime(const JobTiers& tiers,
                                          const JobProcess& whose,
                                          const Hello& hello,
                                          JobTable::Memory memory,
                                          RuntimeLoops& loops,
                                          const RefusalSink& on_refusal) {
  if (memory == JobTable::Memory::kToCome) {
    RoomWait wait{.job = whose.job,
                  .bytes = MemoryBytesOf(hello),
                  .session = loops.session()};
    wait.deadline = SystemClock().Now() + LendingPatience(wait.bytes);
    TERRACE_RETURN_IF_ERROR(tiers.waits->Await(std::move(wait)));
  }
  return MakeJobRuntime(tiers, whose, hello, loops, on_refusal);
}

// What is mapped for all must fit the daemon's address space.
absl::Status CheckAddresses(int64_t bytes, int64_t used) {
  if (bytes <= kMostAddressBytes - used) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "addresses of ", bytes, " bytes for the memory, its growth, what spills ",
      "over and what is far: all of this host's jobs together have ", used,
      ", and the limit is ", kMostAddressBytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobTable>> JobTable::Create(
    const DaemonConfig& config, Parts parts) {
  TERRACE_ASSIGN_OR_RETURN(WakeEvent event, WakeEvent::Make());
  const auto& names = parts.users->names();
  auto ledger = std::make_unique<TierLedger>(config, names);
  auto links = std::make_unique<JobLinks>(config, names);
  auto shared = std::make_shared<Shared>(std::move(event));
  JobTiers tiers = TiersFor(config, ledger.get(), links.get(), parts);
  tiers.waits = &shared->waits;
  return std::unique_ptr<JobTable>(
      new JobTable(std::move(tiers), std::move(ledger), std::move(links),
                   config, std::move(parts), std::move(shared)));
}

JobTable::JobTable(JobTiers tiers, std::unique_ptr<TierLedger> ledger,
                   std::unique_ptr<JobLinks> links, DaemonConfig config,
                   Parts parts, std::shared_ptr<Shared> shared)
    : tiers_(std::move(tiers)),
      ledger_(std::move(ledger)),
      links_(std::move(links)),
      users_(*parts.users),
      loops_(std::move(parts.loops)),
      pages_(std::move(parts.pages)),
      config_(std::move(config)),
      shared_(std::move(shared)),
      sink_of_([shared = shared_](const Peer& peer, const JobName& name) {
        return [=](const absl::Status& why) {
          const bool is_first = shared->refusals.Add(peer, OfJob(name, why));
          if (is_first) shared->ended.Set();
        };
      }),
      kept_(tiers_, sink_of_),
      lending_(ledger_.get(), TierName(tiers_.memory), &shared_->waits,
               [this] { return kept_.Claims(); }) {}

JobTable::~JobTable() {
  EndAll();
  std::vector<std::shared_ptr<GoesOnWith>> kept;
  for (auto& [number, entry] : sessions_) kept.push_back(entry.kept);
  sessions_.clear();
  for (const std::shared_ptr<GoesOnWith>& each : kept) {
    if (each != nullptr && each->job.has_value()) {
      kept_.PutBack(*std::move(each->job));
    }
  }
}

absl::StatusOr<JobTable::Memory> JobTable::Admit(const Peer& peer,
                                                 const Hello& hello) {
  if (ends_) return absl::UnavailableError("the daemon ends");
  if (hello.token != JobToken{}) {
    Sweep();
    TERRACE_RETURN_IF_ERROR(kept_.Check(peer, hello.token));
    return Memory::kCharged;
  }
  if (drains_) {
    return absl::UnavailableError("the daemon drains: it takes no new jobs");
  }
  if (hello.version != kVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("the process has version ",
                     absl::CEscape(hello.version.substr(0, kMostVersionBytes)),
                     ", and the daemon ", kVersion));
  }
  if (hello.memory_bytes <= 0 || hello.growth_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a memory of ", hello.memory_bytes,
                     " bytes that may grow by ", hello.growth_bytes));
  }
  if (hello.job.size() > kMostNameBytes || !IsText(hello.job)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a job's name of ", hello.job.size(), " bytes; at most ",
                     kMostNameBytes, ", and none that a line cannot have"));
  }
  Sweep();
  const JobName name{peer.uid, hello.job};
  TERRACE_RETURN_IF_ERROR(CheckArenas(name));
  int64_t mapped = 0;
  for (const auto& [number, entry] : sessions_) {
    mapped += entry.use.address_bytes;
  }
  TERRACE_RETURN_IF_ERROR(
      CheckAddresses(AddressBytesOf(tiers_, name, hello), mapped));
  const int64_t bytes = MemoryBytesOf(hello);
  const absl::Status taken =
      ledger_->Take(name, TierName(tiers_.memory), bytes);
  if (taken.ok()) return Memory::kCharged;
  TERRACE_RETURN_IF_ERROR(lending_.CheckMayCome(name, bytes, taken));
  return Memory::kToCome;
}

absl::Status JobTable::CheckArenas(const JobName& name) const {
  int64_t of_user = 0;
  int64_t of_job = 0;
  for (const auto& [number, entry] : sessions_) {
    if (entry.use.name.uid == name.uid) ++of_user;
    if (entry.use.name == name) ++of_job;
  }
  for (const Holder& each : holders_) {
    if (each.use.name.uid == name.uid) ++of_user;
    if (each.use.name == name) ++of_job;
  }
  of_user += kept_.CountOf(name.uid, std::nullopt);
  of_job += kept_.CountOf(name.uid, name.job);
  const std::string user = UserIn(users_.names(), name.uid);
  const auto check = [](const std::string& whose, const Quota& quota,
                        int64_t used) {
    if (!quota.arenas.has_value() || used < quota.arenas->count) {
      return absl::OkStatus();
    }
    return absl::ResourceExhaustedError(
        absl::StrCat(whose, " has ", used, " arenas, and the limit is ",
                     quota.arenas->count));
  };
  TERRACE_RETURN_IF_ERROR(
      check(absl::StrCat("the user ", user), config_.OfUser(user), of_user));
  return check(JobText(name), config_.OfJob(user, name.job), of_job);
}

absl::Status JobTable::Begin(PacketSocket socket, const Peer& peer,
                             uint64_t sequence, const Hello& hello,
                             Memory memory) {
  std::shared_ptr<GoesOnWith> kept;
  if (hello.token != JobToken{}) {
    kept = std::make_shared<GoesOnWith>(kept_.Take(hello.token));
  }
  int64_t lent = memory == Memory::kToCome ? MemoryBytesOf(hello) : 0;
  if (kept != nullptr) lent = LentBytesOf(*kept->job);
  const Hello order = kept == nullptr ? hello : kept->job->file.facts().asked;
  const JobName name{peer.uid, order.job};
  const int64_t bytes = MemoryBytesOf(order);
  const int64_t number = next_++;
  const Quota quota = config_.OfJob(UserIn(users_.names(), name.uid), name.job);
  const auto box = std::make_shared<AnswerBoxes>(
      [shared = shared_] { shared->ended.Set(); });
  JobSession::Parts parts{
      .socket = std::move(socket),
      .peer = peer,
      .sequence = sequence,
      .make_runtime = [&tiers = tiers_, sink = sink_of_(peer, name), kept,
                       order, memory, number,
                       whose = JobProcess{name, peer.pid}](
                          RuntimeLoops& loops) -> absl::StatusOr<JobRuntime> {
        if (kept == nullptr) {
          return MakeNewRuntime(tiers, whose, order, memory, loops, sink);
        }
        KeptJob job = *std::move(kept->job);
        kept->job.reset();
        return MakeKeptRuntime(tiers, std::move(job), loops, sink);
      },
      .loops = loops_,
      .pages = pages_,
      .boxes = box,
      .most_in_flight =
          quota.requests.has_value() ? quota.requests->count : kRequests,
      .on_end =
          [shared = shared_, number](JobSession::Ended how) {
            MutexLock lock(shared->mutex);
            shared->gone.emplace_back(number, std::move(how));
            shared->ended.Set();
          }};
  absl::StatusOr<OwnDescriptor> process = OpenProcess(peer.pid);
  absl::StatusOr<std::unique_ptr<JobSession>> session =
      process.ok()
          ? JobSession::Start(std::move(parts))
          : JobSession::Refuse(parts.socket, sequence, process.status());
  if (!session.ok()) {
    if (kept != nullptr) {
      kept_.PutBack(*std::move(kept->job));
    } else if (memory == Memory::kCharged) {
      ledger_->Give(name, TierName(tiers_.memory), bytes);
    }
    return session.status();
  }
  AskedRuntime asked(session->get(), box);
  const auto added = sessions_.emplace(
      number, Entry{.peer = peer,
                    .use = {name, bytes, AddressBytesOf(tiers_, name, order)},
                    .process = *std::move(process),
                    .kept = kept,
                    .session = *std::move(session),
                    .asked = std::move(asked)});
  Entry& entry = added.first->second;
  lending_.Join(entry.session->number(), name, bytes, lent,
                /*has_begun=*/memory == Memory::kCharged, &entry.asked);
  return absl::OkStatus();
}

std::vector<RefusalNotes::Note> JobTable::TakeRefusals() {
  return shared_->refusals.Take();
}

std::vector<JobTable::Ended> JobTable::Reap() {
  shared_->ended.Clear();
  std::vector<std::pair<int64_t, JobSession::Ended>> gone;
  {
    MutexLock lock(shared_->mutex);
    gone.swap(shared_->gone);
  }
  std::vector<Ended> all;
  for (auto& [number, end] : gone) {
    const auto found = sessions_.find(number);
    if (found == sessions_.end()) continue;
    const int64_t lent = lending_.Leave(found->second.session->number());
    Entry entry = std::move(found->second);
    sessions_.erase(found);
    if (entry.kept != nullptr && entry.kept->job.has_value()) {
      // What it was to have back it never had.
      ledger_->Give(entry.use.name, TierName(tiers_.memory),
                    LentBytesOf(*entry.kept->job) - lent);
      kept_.PutBack(*std::move(entry.kept->job));
      users_.RemoveConnection(entry.peer.uid);
      all.push_back({entry.peer, std::move(end.how), std::move(entry.session)});
      continue;
    }
    if (entry.kept != nullptr && !end.has_begun) {
      end.process_has_memory = entry.kept->has_pins;
      end.memory = std::move(entry.kept->memory);
    }
    entry.use.memory_bytes += end.charged_bytes - lent;
    counts_.OnEnded(entry.use.name, end.last);
    const bool was_last =
        absl::c_none_of(sessions_, [&entry](const auto& each) {
          return each.second.use.name == entry.use.name;
        });
    if (was_last) counts_.Forget(entry.use.name);
    const bool is_held =
        end.process_has_memory && end.memory.ok() && entry.process.ok();
    if (end.transfers_have_memory) {
      users_.RemoveConnection(entry.peer.uid);  // and the bytes stay taken
    } else if (is_held) {
      holders_.push_back(
          {entry.use, std::move(entry.process), std::move(end.memory)});
    } else {
      HostArena::EmptyMemoryFile(end.memory);
      Give(entry.use);
    }
    all.push_back({entry.peer, std::move(end.how), std::move(entry.session)});
  }
  Sweep();
  return all;
}

void JobTable::Give(const Use& use) {
  ledger_->Give(use.name, TierName(tiers_.memory), use.memory_bytes);
  users_.RemoveConnection(use.name.uid);
}

// Whoever else has the memory had no right to it: its pages go.
void JobTable::Sweep() {
  kept_.Sweep();
  for (const auto& [number, entry] : sessions_) {
    const int64_t session = entry.session->number();
    const bool is_gone = lending_.IsWaiting(session) && HasGone(entry.process);
    if (is_gone) lending_.GiveUp(session);
  }
  std::erase_if(holders_, [this](const Holder& holder) {
    if (!HasGone(holder.process)) return false;
    HostArena::EmptyMemoryFile(holder.memory);
    Give(holder.use);
    return true;
  });
}

void JobTable::EndAll() {
  ends_ = true;
  shared_->waits.End();
  for (auto& [number, entry] : sessions_) entry.session->End();
}

void JobTable::SetLimits(const DaemonConfig& config) {
  config_ = config;
  ledger_->SetLimits(config, users_.names());
  links_->SetWeights(config, users_.names());
}

}  // namespace terrace
